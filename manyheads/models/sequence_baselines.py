"""Baselines for text classification: recurrent and convolutional layers on the same embedding as the text classifier.

kind      layer that mixes the words                                   parameters for width and hidden 32
"rnn"     h' = tanh(W x + U h + b), the last state (Elman 1990)        2,112
"lstm"    gates and a cell (Hochreiter & Schmidhuber 1997)             8,448: 8,320 as in Keras and a second bias
"gru"     two gates and no cell (Cho 2014)                             6,336 as in Keras
"bilstm"  one LSTM per direction (Schuster & Paliwal 1997)             16,896: 16,640 as in Keras and two second biases
"conv1d"  two convolutions, 7 words wide, with pooling between them    2 x 7,200 (Chollet, section 6.4)
"conv2d"  two 3 x 3 convolutions over the words x features "image"     320 + 9,248

After the mixing layer follow dropout with probability 1/2 and one sigmoid unit, as in the text classifier. PyTorch's
recurrent layers have two biases, although one would be enough. Both start at zero, except that the bias of the forget
gate starts at one as in Keras. Padding after a text has no effect on the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Classes, LabelConfig, Length, Odd, Range, Rate, Size, TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.interface import Model
from manyheads.core.layers import LabelHead, TokenEmbedding, xavier_uniform
from manyheads.core.recurrent import Cell, batch_first, pack_texts, read_texts, recurrent_layers
from manyheads.errors import UserError
from manyheads.models.text_classifier import both_logits, units

Kind = Literal["rnn", "lstm", "gru", "bilstm", "conv1d", "conv2d"]
Neighbors = Annotated[int, Range(1, 1000)]


@dataclass(frozen=True)
class SequenceBaselineConfig(LabelConfig):
    """Sizes and options of a baseline for text classification.

    labels         classes in the order of the logits
    hidden         units of a recurrent layer in each direction, or channels of a convolution
    kernel         width of a convolution along each of its axes
    pooling        width of the pooling between two convolutions, along each axis
    max_positions  maximum number of words of a text
    dropout        dropout before the output
    """

    kind: Kind = "lstm"
    vocab: Vocabulary = 20_000
    labels: Classes = ("negative", "positive")
    pad: TokenId = 0
    width: Size = 32
    hidden: Size = 32
    kernel: Annotated[Neighbors, Odd()] = 7
    pooling: Neighbors = 5
    max_positions: Length = 600
    dropout: Rate = 0.5


class SequenceBaseline(Model[SequenceBaselineConfig]):
    """Text classifier with a recurrent or convolutional layer. Tokens in, label logits out."""

    def __init__(self, config: SequenceBaselineConfig) -> None:
        super().__init__(config, pad=config.pad, max_positions=config.max_positions, labels=config.labels)
        c = config
        self.embedding = TokenEmbedding(c.vocab, c.width)
        self.mixer = _MIXERS[c.kind](c)
        self.output = LabelHead(self.mixer.features, units(c.labels, c.target))
        xavier_uniform(self)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return label logits (B, L) for tokens (B, T). The argument segments is ignored.

        lengths  number of real tokens of each row, (B,). By default, all tokens are real
        """
        c = self.config
        if tokens.shape[1] > c.max_positions:
            raise UserError(
                f"the input has {tokens.shape[1]} tokens, but the model takes at most {c.max_positions}: truncate it"
            )
        features = self.mixer(self.embedding(tokens), lengths)  # (B, features)
        return both_logits(self.output(dropout(features, c.dropout, self.training)), c.labels)


class Recurrent(nn.Module):
    """Recurrent layer that returns its last state: x (B, T, D), lengths (B,) or None -> (B, features).

    With two directions, the last states of both directions are concatenated.
    """

    def __init__(self, width: int, hidden: int, cell: Cell, *, directions: int = 1, layers: int = 1) -> None:
        super().__init__()
        self.layer = recurrent_layers(cell, width, hidden, layers, directions=directions)
        self.directions, self.features = directions, directions * hidden
        for name, parameter in self.layer.named_parameters():
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(parameter)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
                if cell == "lstm" and name.startswith("bias_ih"):
                    # In the bias vector of an LSTM, the second quarter belongs to the forget gate.
                    nn.init.ones_(parameter[hidden : 2 * hidden])

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        _, states = self.layer(pack_texts(x, lengths))
        return batch_first(states)[0][:, -self.directions :].flatten(1)

    def states(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the states of every position, (B, T, features), for x (B, T, D) and lengths (B,) or None."""
        return read_texts(self.layer, x, lengths)[0]


class Convolutional(nn.Module):
    """Two convolutions, then a maximum over the text: x (B, T, D), lengths (B,) or None -> (B, features).

    axes  1 for convolutions along the words, over all features; 2 for convolutions along the words and the features
    """

    def __init__(self, width: int, hidden: int, kernel: int, pooling: int, axes: Literal[1, 2]) -> None:
        super().__init__()
        kind, first = (nn.Conv1d, width) if axes == 1 else (nn.Conv2d, 1)
        self.first = kind(first, hidden, kernel, padding="same")
        self.second = kind(hidden, hidden, kernel, padding="same")
        self.axes, self.pooling = axes, pooling
        self.features = hidden if axes == 1 else hidden * -(-width // pooling)
        for layer in (self.first, self.second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        # The channels come first, then the words, then the features: (B, D, T) or (B, 1, T, D).
        image = x.transpose(1, 2) if self.axes == 1 else x[:, None]
        x = _zero_padding(self.first(_zero_padding(image, lengths)).relu(), lengths)
        # After a ReLU no value is negative, so the zeros at padding never exceed the true maximum.
        pool = F.max_pool1d if self.axes == 1 else F.max_pool2d
        x = pool(x, self.pooling, ceil_mode=True)
        shorter = None if lengths is None else -(-lengths // self.pooling)
        x = _zero_padding(self.second(x).relu(), shorter)
        return x.amax(2).flatten(1)


def _zero_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return x (B, C, T, ...) with the padding after each text set to zero."""
    if lengths is None:
        return x
    real = torch.arange(x.shape[2], device=x.device) < lengths[:, None]  # (B, T)
    return x * real.view(x.shape[0], 1, x.shape[2], *[1] * (x.dim() - 3))


_MIXERS: dict[str, Any] = {
    "rnn": lambda c: Recurrent(c.width, c.hidden, "rnn"),
    "lstm": lambda c: Recurrent(c.width, c.hidden, "lstm"),
    "gru": lambda c: Recurrent(c.width, c.hidden, "gru"),
    "bilstm": lambda c: Recurrent(c.width, c.hidden, "lstm", directions=2),
    "conv1d": lambda c: Convolutional(c.width, c.hidden, c.kernel, c.pooling, axes=1),
    "conv2d": lambda c: Convolutional(c.width, c.hidden, c.kernel, c.pooling, axes=2),
}
