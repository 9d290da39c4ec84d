"""Sequence-to-sequence model of two recurrent networks without attention (Cho 2014, Sutskever 2014).

The encoder reads the source. Its last state has the same size for any source length, and is the initial state of the
decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from manyheads.core.cache import StateCache
from manyheads.core.config import Layers, Length, Size
from manyheads.core.dropout import dropout
from manyheads.core.recurrent import Cell, State, batch_first, layers_first, pack_texts, recurrent_layers, reverse_texts
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig


@dataclass(frozen=True)
class Seq2SeqRNNConfig(EncoderDecoderConfig):
    """Sizes and options of the model.

    cell            recurrent layer: "rnn" (Elman 1990), "lstm" (Hochreiter & Schmidhuber 1997) or "gru" (Cho 2014)
    layers          number of layers of the encoder, and of the decoder
    hidden          number of units of a layer. By default, equal to the width
    reverse_source  if True, the source is read backward, so that the first words of source and target are close
                    (Sutskever 2014, section 3.3)
    max_positions   maximum number of tokens of a text; the model itself has no such limit
    dropout         dropout of the embeddings, between the layers and before the output projection
    """

    output_bias: bool = True
    width: Size = 128
    max_positions: Length = 10_000
    cell: Cell = "lstm"
    layers: Layers = 2
    hidden: Size | None = None
    reverse_source: bool = False


class Seq2SeqRNN(EncoderDecoder[Seq2SeqRNNConfig, StateCache]):
    """Encoder-decoder of two recurrent networks. Source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: Seq2SeqRNNConfig) -> None:
        super().__init__(config)
        c = config
        hidden = c.hidden or c.width
        self.encoder, self.decoder = (
            recurrent_layers(c.cell, c.width, hidden, c.layers, dropout=c.dropout) for _ in range(2)
        )
        self.combine = None if hidden == c.width else nn.Linear(hidden, c.width)
        self.add_output()

    def hidden(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Return the states of the decoder, (B, Tt, D)."""
        return self._write(target, self._read(source, source_lengths))[0]

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StateCache:
        """Encode the source (B, Ts) and return a cache for `step`.

        `capacity` has no effect, because the cache has a constant size.
        """
        return StateCache(batch_first(self._read(source, source_lengths)))

    def step(self, tokens: Tensor, cache: StateCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T).

        The cache contains the state after the previous tokens.
        """
        hidden, state = self._write(tokens, layers_first(cache.states))
        cache.states, cache.lengths = batch_first(state), cache.lengths + tokens.shape[1]
        return self.project(hidden)

    def _read(self, source: Tensor, lengths: Tensor | None) -> State:
        if self.config.reverse_source:
            source = reverse_texts(source, lengths)
        x = dropout(self.source_embedding(source), self.config.dropout, self.training)  # (B, Ts, D)
        state: State = self.encoder(pack_texts(x, lengths))[1]
        return state

    def _write(self, target: Tensor, state: State) -> tuple[Tensor, State]:
        x = dropout(self.target_embedding(target), self.config.dropout, self.training)
        states, last = self.decoder(x, state)
        states = states if self.combine is None else self.combine(states)
        return dropout(states, self.config.dropout, self.training), last
