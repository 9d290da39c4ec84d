"""Deep recurrent translator in the style of GNMT, Google's neural machine translation system (Wu 2016).

    source  -> embed -> bidirectional LSTM -> LSTMs, with residual connections from the third layer on  -> memory
    target  -> embed -> LSTM with attention to memory -> LSTMs, which also read the contexts            -> logits

The lowest layer of the decoder attends with its previous state, so the layers above it need no loop over positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manyheads.core.cache import StateCache
from manyheads.core.config import Layers, Length, Size
from manyheads.core.dropout import dropout
from manyheads.core.recurrent import LSTM, State, batch_first, layers_first, read_texts
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from manyheads.models.rnn_attention import Source, StateAttention, attend_before, check_hidden

FIRST_RESIDUAL = 2  # index of the first layer whose input is added to its output (figure 1 of the paper)


@dataclass(frozen=True)
class GNMTConfig(EncoderDecoderConfig):
    """Sizes and options of the model.

    layers         number of layers of the encoder, and of the decoder
    hidden         number of units of a layer; the lowest layer of the encoder has half of them in each direction
    max_positions  maximum number of tokens of a text; the model itself has no such limit
    dropout        dropout of the inputs of the layers, except the contexts in the lowest layer of the decoder, and of
                   the highest states
    """

    output_bias: bool = True
    width: Size = 128
    max_positions: Length = 10_000
    layers: Layers = 4
    hidden: Size = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hidden(self.hidden)


class GNMTDecoder(nn.Module):
    """Decoder: embedded words (B, T, D) -> states of the highest layer (B, T, H)."""

    def __init__(self, c: GNMTConfig) -> None:
        super().__init__()
        self.dropout = c.dropout
        self.lowest = LSTM(c.width + c.hidden, c.hidden, batch_first=True)
        self.cross = StateAttention(c.hidden, c.hidden, "additive")
        self.layers = nn.ModuleList(LSTM(2 * c.hidden, c.hidden, batch_first=True) for _ in range(c.layers - 1))

    def forward(self, x: Tensor, states: Sequence[State], source: Source) -> tuple[Tensor, list[State]]:
        """Return the states of the highest layer, and the last state of every layer."""
        x, contexts, state = attend_before(self.lowest, self.cross, x, states[0], source)
        last = [state]
        for index, (layer, first) in enumerate(zip(self.layers, states[1:], strict=True), 1):
            read = dropout(torch.cat([x, contexts], -1), self.dropout, self.training)
            outputs, state = layer(read, first)
            x = outputs + x if index >= FIRST_RESIDUAL else outputs
            last.append(state)
        return x, last


class GNMT(EncoderDecoder[GNMTConfig, StateCache]):
    """Encoder-decoder of deep LSTMs. Source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: GNMTConfig) -> None:
        super().__init__(config)
        c = config
        lowest = LSTM(c.width, c.hidden // 2, batch_first=True, bidirectional=True)
        others = (LSTM(c.hidden, c.hidden, batch_first=True) for _ in range(c.layers - 1))
        self.encoder = nn.ModuleList([lowest, *others])
        self.keys = nn.Linear(c.hidden, c.hidden, bias=False)
        self.decoder = GNMTDecoder(c)
        self.combine = None if c.hidden == c.width else nn.Linear(c.hidden, c.width)
        self.add_output()

    def hidden(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Return the states of the decoder, (B, Tt, D)."""
        memory = self.encode(source, source_lengths)
        attended = Source(self.keys(memory), memory, source_lengths)
        return self._write(target, self._first_states(memory), attended)[0]

    def encode(self, source: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the states of the highest layer of the encoder, (B, Ts, hidden)."""
        x = self.source_embedding(source)  # (B, Ts, D)
        for index, layer in enumerate(self.encoder):
            assert isinstance(layer, nn.RNNBase)
            outputs, _ = read_texts(layer, dropout(x, self.config.dropout, self.training), lengths)
            x = outputs + x if index >= FIRST_RESIDUAL else outputs
        return x

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StateCache:
        """Encode the source (B, Ts) and return a cache for `step`.

        `capacity` has no effect, because the cache has a constant size.
        """
        memory = self.encode(source, source_lengths)
        states = [part for state in self._first_states(memory) for part in batch_first(state)]
        return StateCache(states, [self.keys(memory), memory, source_lengths])

    def step(self, tokens: Tensor, cache: StateCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T)."""
        states = [layers_first(cache.states[i : i + 2]) for i in range(0, len(cache.states), 2)]
        hidden, last = self._write(tokens, states, Source.of(cache))
        cache.states = [part for state in last for part in batch_first(state)]
        cache.lengths = cache.lengths + tokens.shape[1]
        return self.project(hidden)

    def _first_states(self, memory: Tensor) -> list[State]:
        zeros = memory.new_zeros(1, len(memory), self.config.hidden)
        return [(zeros, zeros)] * self.config.layers

    def _write(self, target: Tensor, states: Sequence[State], source: Source) -> tuple[Tensor, list[State]]:
        x = dropout(self.target_embedding(target), self.config.dropout, self.training)
        hidden, last = self.decoder(x, states, source)
        hidden = dropout(hidden, self.config.dropout, self.training)
        return hidden if self.combine is None else self.combine(hidden), last
