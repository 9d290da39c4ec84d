"""Sequence to sequence with two LSTMs and no attention (Sutskever 2014): the rival of the Transformers that translate.

One LSTM reads the source, and its last state, as large for any length, is where the other one begins to write.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Config, Layers, Length, Rate, Size, TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.layers import LSTM, TokenEmbedding, packed

State = tuple[Tensor, Tensor]  # of h and of c: (layers, B, D) each


@dataclass(frozen=True)
class Seq2SeqLSTMConfig(Config):
    """Sizes and choices; source and target share a vocabulary and a matrix, which is also the output's.

    max_positions  tokens a text may have: nothing in the model needs a limit
    """

    vocab: Vocabulary
    pad: TokenId
    end: TokenId
    start: TokenId
    width: Size = 128
    layers: Layers = 2
    max_positions: Length = 10_000
    dropout: Rate = 0.1


class StateCache:
    """What the decoder remembers: one state a row, whatever was written."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.lengths = torch.zeros(state[0].shape[1], dtype=torch.long, device=state[0].device)  # (B,)

    def select(self, rows: Tensor) -> None:
        """Keep rows (N,), in that order, repeated where a number is repeated."""
        self.state = (self.state[0][:, rows], self.state[1][:, rows])
        self.lengths = self.lengths[rows]


class Seq2SeqLSTM(nn.Module):
    """Source and target tokens in, logits over the vocabulary out."""

    def __init__(self, config: Seq2SeqLSTMConfig) -> None:
        super().__init__()
        self.config = c = config
        self.source_pad = c.pad
        self.embedding = TokenEmbedding(c.vocab, c.width, c.pad, scaled=True)
        self.encoder, self.decoder = (
            LSTM(c.width, c.width, c.layers, batch_first=True, dropout=c.dropout if c.layers > 1 else 0.0)
            for _ in range(2)
        )
        self.output_bias = nn.Parameter(torch.zeros(c.vocab))

    def forward(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None
    ) -> Tensor:
        """source (B, Ts), target (B, Tt) beginning with the start token -> logits (B, Tt, V) of what follows."""
        return self.project(self.hidden(source, source_lengths, target))

    def hidden(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None,
        offset: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The decoder's states (B, Tt, D).

        No state depends on the padding behind a target, or on positions: lengths of targets and offsets change nothing.
        """
        return self._write(target, self._read(source, source_lengths))[0]

    def project(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) -> logits (..., V)."""
        return F.linear(hidden, self.output_weight, self.output_bias)

    @property
    def output_weight(self) -> Tensor:
        """The output projection (V, D)."""
        return self.embedding.weight

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StateCache:
        """Read the source (B, Ts); the cache has no capacity to outgrow."""
        return StateCache(self._read(source, source_lengths))

    def step(self, tokens: Tensor, cache: StateCache) -> Tensor:
        """The next tokens (B, T) of each row -> logits (B, T, V) of what follows each."""
        states, cache.state = self._write(tokens, cache.state)
        cache.lengths = cache.lengths + tokens.shape[1]
        return self.project(states)

    def _read(self, source: Tensor, lengths: Tensor | None) -> State:
        x = dropout(self.embedding(source), self.config.dropout, self.training)  # (B, Ts, D)
        return self.encoder(packed(x, lengths))[1]

    def _write(self, target: Tensor, state: State) -> tuple[Tensor, State]:
        x = dropout(self.embedding(target), self.config.dropout, self.training)
        states, last = self.decoder(x, state)
        return dropout(states, self.config.dropout, self.training), last
