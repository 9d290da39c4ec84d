"""Sequence-to-sequence model of two LSTMs without attention (Sutskever 2014), a baseline for translation.

The encoder LSTM reads the source. Its last state has the same size for any source length, and is the initial state of
the decoder LSTM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Config, Layers, Length, Rate, Size, TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.layers import LSTM, TokenEmbedding, pack_texts

State = tuple[Tensor, Tensor]  # state of an LSTM: hidden state h and cell state c, (layers, B, D) each


@dataclass(frozen=True)
class Seq2SeqLSTMConfig(Config):
    """Sizes and options of the model. Source, target and output share one vocabulary and one embedding matrix.

    max_positions  maximum number of tokens of a text; the model itself has no such limit
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
    """State of the decoder during generation: one LSTM state of constant size for each row of the batch.

    It has the interface of a key-value cache.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.lengths = torch.zeros(state[0].shape[1], dtype=torch.long, device=state[0].device)  # (B,)

    def select(self, rows: Tensor) -> None:
        """Keep only the rows with the given indices (N,), in that order; an index may repeat."""
        self.state = (self.state[0][:, rows], self.state[1][:, rows])
        self.lengths = self.lengths[rows]


class Seq2SeqLSTM(nn.Module):
    """Encoder-decoder of two LSTMs. Source and target tokens in, logits over the vocabulary out."""

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
        """Return the logits (B, Tt, V) of the next tokens for source (B, Ts) and target (B, Tt).

        The target begins with the start token.
        """
        return self.project(self.hidden(source, source_lengths, target))

    def hidden(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None,
        offset: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the hidden states of the decoder, (B, Tt, D).

        The arguments for target lengths and offsets have no effect, because no state depends on later padding or on
        absolute positions.
        """
        return self._write(target, self._read(source, source_lengths))[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Return the logits (..., V) of hidden states (..., D)."""
        return F.linear(hidden, self.output_weight, self.output_bias)

    @property
    def output_weight(self) -> Tensor:
        """Return the matrix of the output projection, (V, D)."""
        return self.embedding.weight

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StateCache:
        """Encode the source (B, Ts) and return a cache for `step`.

        `capacity` has no effect, because the cache has a constant size.
        """
        return StateCache(self._read(source, source_lengths))

    def step(self, tokens: Tensor, cache: StateCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T).

        The cache contains the state after the previous tokens.
        """
        states, cache.state = self._write(tokens, cache.state)
        cache.lengths = cache.lengths + tokens.shape[1]
        return self.project(states)

    def _read(self, source: Tensor, lengths: Tensor | None) -> State:
        x = dropout(self.embedding(source), self.config.dropout, self.training)  # (B, Ts, D)
        return self.encoder(pack_texts(x, lengths))[1]

    def _write(self, target: Tensor, state: State) -> tuple[Tensor, State]:
        x = dropout(self.embedding(target), self.config.dropout, self.training)
        states, last = self.decoder(x, state)
        return dropout(states, self.config.dropout, self.training), last
