"""The rivals of the text classifier: every other way in which the sources mix a sequence, on the same embedding.

kind      mixes by                                                     its parameters, 32 wide on 32
"rnn"     h' = tanh(W x + U h + b), the last state (Elman 1990)        2,112
"lstm"    gates and a cell (Hochreiter & Schmidhuber 1997)             8,448: Keras's 8,320 and a second bias
"bilstm"  one LSTM forwards, one backwards (Schuster & Paliwal 1997)   16,896: Keras's 16,640 and two second biases
"conv1d"  two convolutions, 7 words wide, with pooling between them    2 x 7,200 (Chollet, section 6.4)
"conv2d"  two 3 x 3 convolutions over the words x features "image"     320 + 9,248

Half of the features are then dropped out, and one sigmoid unit reads them, as in the text classifier. PyTorch's
recurrent layers add two biases, of which one would do: they start at zero, and the one of the forget gate at one, as in
Keras. What lies behind a text's end changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from manyheads.core.config import Classes, Config, Length, Range, Rate, Size, TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.layers import LSTM, TokenEmbedding, packed, xavier_uniform
from manyheads.errors import UserError
from manyheads.models.text_classifier import both_logits, units

Kind = Literal["rnn", "lstm", "bilstm", "conv1d", "conv2d"]
Neighbours = Annotated[int, Range(1, 1000)]


@dataclass(frozen=True)
class SequenceBaselineConfig(Config):
    """Sizes and choices.

    labels         what is told apart, by the index of the logit
    hidden         units of a recurrent layer in each direction, or channels of a convolution
    kernel         how many neighbours a convolution sees, along each of its axes
    pooling        how many neighbours the pooling between two convolutions takes together, along each axis
    max_positions  words a text may have
    dropout        before the output
    """

    kind: Kind = "lstm"
    vocab: Vocabulary = 20_000
    labels: Classes = ("negative", "positive")
    pad: TokenId = 0
    width: Size = 32
    hidden: Size = 32
    kernel: Neighbours = 7
    pooling: Neighbours = 5
    max_positions: Length = 600
    dropout: Rate = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel % 2 == 0:
            raise UserError(f"kernel is {self.kernel}: an odd one looks equally far to both sides")


class SequenceBaseline(nn.Module):
    """Tokens in, logits over the labels out."""

    def __init__(self, config: SequenceBaselineConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = TokenEmbedding(c.vocab, c.width)
        self.mixer = _MIXERS[c.kind](c)
        self.output = nn.Linear(self.mixer.features, units(c.labels))
        xavier_uniform(self)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T), of which lengths (B,) are real (None: all) -> logits (B, L). Segments are not read."""
        c = self.config
        if tokens.shape[1] > c.max_positions:
            raise UserError(f"the input has {tokens.shape[1]} tokens, the model takes {c.max_positions}: truncate it")
        features = self.mixer(self.embedding(tokens), lengths)  # (B, features)
        return both_logits(self.output(dropout(features, c.dropout, self.training)))


class Recurrent(nn.Module):
    """x (B, T, D), lengths (B,) or None -> the last state, of both directions where there are two (B, features)."""

    def __init__(self, width: int, hidden: int, *, gated: bool, directions: int = 1, layers: int = 1) -> None:
        super().__init__()
        kind = LSTM if gated else nn.RNN
        self.layer = kind(width, hidden, layers, batch_first=True, bidirectional=directions == 2)
        self.directions, self.features = directions, directions * hidden
        for name, parameter in self.layer.named_parameters():
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(parameter)
            elif name.startswith("weight_hh"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
                if gated and name.startswith("bias_ih"):
                    nn.init.ones_(parameter[hidden : 2 * hidden])  # the forget gate's

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        _, states = self.layer(packed(x, lengths))
        last = states[0] if isinstance(states, tuple) else states  # (layers * directions, B, hidden)
        return last[-self.directions :].transpose(0, 1).flatten(1)

    def states(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """x (B, T, D), lengths (B,) or None -> the states at every position (B, T, features)."""
        states, _ = self.layer(packed(x, lengths))
        return states if lengths is None else pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0]


class Convolutional(nn.Module):
    """x (B, T, D), lengths (B,) or None -> the maxima over the text of what the second convolution finds (B, features).

    axes  1: along the words, all features at once. 2: along the words and along the features.
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
        # channels, then words, then features: (B, D, T) or (B, 1, T, D)
        image = x.transpose(1, 2) if self.axes == 1 else x[:, None]
        x = _only_real(self.first(_only_real(image, lengths)).relu(), lengths)
        # nothing is below zero, so the zeros behind a text never are the largest, nor change what is
        pool = F.max_pool1d if self.axes == 1 else F.max_pool2d
        x = pool(x, self.pooling, ceil_mode=True)
        shorter = None if lengths is None else -(-lengths // self.pooling)
        x = _only_real(self.second(x).relu(), shorter)
        return x.amax(2).flatten(1)


def _only_real(x: Tensor, lengths: Tensor | None) -> Tensor:
    """x (B, C, T, ...) with zeros behind each text."""
    if lengths is None:
        return x
    real = torch.arange(x.shape[2], device=x.device) < lengths[:, None]  # (B, T)
    return x * real.view(x.shape[0], 1, x.shape[2], *[1] * (x.dim() - 3))


_MIXERS: dict[str, Any] = {
    "rnn": lambda c: Recurrent(c.width, c.hidden, gated=False),
    "lstm": lambda c: Recurrent(c.width, c.hidden, gated=True),
    "bilstm": lambda c: Recurrent(c.width, c.hidden, gated=True, directions=2),
    "conv1d": lambda c: Convolutional(c.width, c.hidden, c.kernel, c.pooling, axes=1),
    "conv2d": lambda c: Convolutional(c.width, c.hidden, c.kernel, c.pooling, axes=2),
}
