"""Deep-Att, a recurrent translator with fast-forward connections (Zhou 2016).

An LSTM multiplies its input x by a matrix W, and adds the product of its previous state and another matrix. Between the
layers, a fast-forward connection passes W x on, which depends on no state and no nonlinearity of the layer:

    f(k) = W(k) [half of f(k - 1); h(k - 1)]        h(k) = LSTM(f(k))        half: the first half of the elements

The encoder consists of two columns of such layers. The direction of reading alternates from layer to layer, and the
columns begin with opposite directions. The lowest layer of the decoder attends to both columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.dropout import dropout
from manyheads.core.recurrent import LSTM, State, read_texts, reverse_texts
from manyheads.models.gnmt import DeepConfig, DeepTranslator
from manyheads.models.rnn_attention import Source, StateAttention, attend_before


@dataclass(frozen=True)
class DeepAttConfig(DeepConfig):
    """Sizes and options of the model, in addition to the fields of `DeepConfig`.

    layers   number of layers of each of the two columns of the encoder
    dropout  dropout of the embeddings, and of the states of each layer
    """


class FastForward(nn.Module):
    """Connection between LSTM layers: the first half of a layer's input product, (B, T, 2 H), next to its states.

    dropout  dropout rate of the states
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, layer: nn.RNNBase, x: Tensor, states: Tensor) -> Tensor:
        """Return the input of the next layer, (B, T, 3 H), for the input x and the states (B, T, H) of a layer."""
        weight = layer.weight_ih_l0  # (4 H, D)
        assert isinstance(weight, Tensor)
        fast = F.linear(x, weight[: len(weight) // 2])
        return torch.cat([fast, dropout(states, self.dropout, self.training)], -1)


def _layers(width: int, hidden: int, layers: int) -> nn.ModuleList:
    return nn.ModuleList(LSTM(3 * hidden if index else width, hidden, batch_first=True) for index in range(layers))


class DeepAttDecoder(nn.Module):
    """Decoder: embedded words (B, T, D) -> outputs of the highest layer (B, T, 3 H)."""

    def __init__(self, c: DeepAttConfig) -> None:
        super().__init__()
        self.cross = StateAttention(c.hidden, c.hidden, "additive")
        self.layers = _layers(c.width + c.hidden, c.hidden, c.decoder_depth)
        self.fast_forward = FastForward(c.dropout)

    def forward(
        self, x: Tensor, first: Sequence[State], source: Source, lengths: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Return the outputs of the highest layer, and the last state of every layer. `lengths` has no effect."""
        last: list[State] = []
        for layer, state in zip(self.layers, first, strict=True):
            assert isinstance(layer, nn.RNNBase)
            if last:
                states, state = layer(x, state)
            else:
                states, contexts, state = attend_before(layer, self.cross, x, state, source)
                x = torch.cat([x, contexts], -1)
            x = self.fast_forward(layer, x, states)
            last.append(state)
        return x, last


class DeepAtt(DeepTranslator[DeepAttConfig]):
    """Encoder-decoder of deep LSTMs with fast-forward connections. Source and target tokens in, logits out."""

    def __init__(self, config: DeepAttConfig) -> None:
        super().__init__(config)
        c = config
        self.columns = nn.ModuleList(_layers(c.width, c.hidden, c.layers) for _ in range(2))
        self.fast_forward = FastForward(c.dropout)
        self.memory = nn.Linear(6 * c.hidden, c.hidden, bias=False)
        self.keys = nn.Linear(c.hidden, c.hidden, bias=False)
        self.decoder = DeepAttDecoder(c)
        self.combine = nn.Linear(3 * c.hidden, c.width)
        self.add_output()

    def encode(self, source: Tensor, lengths: Tensor | None) -> Tensor:
        """Return a projection of the outputs of both columns, (B, Ts, hidden)."""
        embedded = dropout(self.source_embedding(source), self.config.dropout, self.training)  # (B, Ts, D)
        tops = []
        for backward, column in enumerate(self.columns):
            assert isinstance(column, nn.ModuleList)
            x = embedded
            for index, layer in enumerate(column):
                assert isinstance(layer, nn.RNNBase)
                # Each layer reads the texts in the opposite direction of the layer below it.
                x = reverse_texts(x, lengths) if index or backward else x
                x = self.fast_forward(layer, x, read_texts(layer, x, lengths)[0])
            tops.append(reverse_texts(x, lengths) if (len(column) - 1 + backward) % 2 else x)
        return self.memory(torch.cat(tops, -1))
