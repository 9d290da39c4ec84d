"""Recurrent translators with attention, of Bahdanau 2015 and Luong 2015.

A bidirectional encoder reads the source (Luong's has one direction). Its states, one per source word, are both the
keys and the values of one attention head. The two papers differ in the moment at which the decoder attends:

    order "before" (Bahdanau)  context = attend(previous state);  state = cell([word; context], previous state)
    order "after"  (Luong)     state = cell(word, previous state);  context = attend(state)

In both cases, tanh(W [context; state]) goes to the output projection. Luong calls this vector attentional, and with
input feeding it is also an input of the next step of the decoder. If neither the context nor the attentional vector is
an input of the decoder, all positions of a target are computed at once. Otherwise a loop computes one position at a
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.cache import StateCache
from manyheads.core.config import Layers, Length, Size
from manyheads.core.dropout import dropout
from manyheads.core.masks import Mask
from manyheads.core.recurrent import Cell, State, batch_first, layers_first, read_texts, recurrent_layers
from manyheads.core.stepwise import joined_steps
from manyheads.core.tap import Tap
from manyheads.errors import UserError
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

Scores = Literal["dot", "general", "additive"]
Order = Literal["before", "after"]


@dataclass(frozen=True)
class RNNAttentionConfig(EncoderDecoderConfig):
    """Sizes and options of the model.

    cell           recurrent layer: "rnn", "lstm" (Luong) or "gru" (Bahdanau)
    layers         number of layers of the encoder, and of the decoder
    hidden         number of units of a decoder layer, and of an encoder layer in both directions together
    scores         scores of a state h of the decoder and a state s of the encoder: "dot": h . s; "general": h . W s
                   (Luong 2015, section 3.1); "additive": v . tanh(W h + U s) (Bahdanau 2015, section A.1.2)
    order          "before": the decoder attends before its recurrent layer, with its previous state (Bahdanau)
                   "after": it attends with its new state (Luong)
    input_feeding  true: the attentional vector is an input of the next step (Luong 2015, section 3.3), for order=after
    max_positions  maximum number of tokens of a text; the model itself has no such limit
    dropout        dropout of the embeddings, between the layers and before the output projection
    """

    output_bias: bool = True
    width: Size = 128
    max_positions: Length = 10_000
    cell: Cell = "lstm"
    layers: Layers = 1
    hidden: Size = 256
    scores: Scores = "dot"
    order: Order = "after"
    input_feeding: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hidden(self.hidden)
        if self.input_feeding and self.order == "before":
            raise UserError("input_feeding=true needs order=after: with order=before, the context is the input already")


def check_hidden(hidden: int) -> None:
    """Raise UserError unless both directions of an encoder can have half of the units."""
    if hidden % 2:
        raise UserError(f"hidden is {hidden}: expected an even number, because each direction of the encoder has half")


class Source(NamedTuple):
    """Encoder output to which a decoder attends.

    keys     (B, Tk, M) keys
    memory   (B, Tk, M) states of the encoder, which are the values
    lengths  (B,) number of real source tokens; None without padding
    """

    keys: Tensor
    memory: Tensor
    lengths: Tensor | None

    @classmethod
    def of(cls, cache: StateCache) -> Source:
        """Return the source of each row of a cache."""
        keys, memory, lengths = cache.memory
        assert keys is not None
        assert memory is not None
        return cls(keys, memory, lengths)


class StateAttention(nn.Module):
    """One attention head from states of a decoder, (B, Tq, H), to states of an encoder, (B, Tk, M).

    The values are the states of the encoder themselves, without the projections of multi-head attention.
    """

    heads = 1

    def __init__(self, width: int, memory_width: int, scores: Scores) -> None:
        super().__init__()
        assert scores != "dot" or width == memory_width
        self.query = None if scores == "dot" else nn.Linear(width, memory_width, bias=False)
        self.score = nn.Linear(memory_width, 1, bias=False) if scores == "additive" else None
        self.tap = Tap()

    def forward(self, states: Tensor, source: Source) -> Tensor:
        """Return the contexts (B, Tq, M), weighted means of the states of the encoder."""
        query = (states if self.query is None else self.query(states))[:, None]  # (B, 1, Tq, M)
        key, value, mask = source.keys[:, None], source.memory[:, None], Mask(key_lengths=source.lengths)
        if self.score is None:
            return attend(query, key, value, mask=mask, scale=1.0, tap=self.tap)[:, 0]
        scores = self.score((query[:, :, :, None] + key[:, :, None]).tanh())[..., 0]  # (B, 1, Tq, Tk)
        return attend(query, None, value, scores=scores, mask=mask, tap=self.tap)[:, 0]


def attend_before(
    cell: nn.RNNBase, cross: StateAttention, x: Tensor, state: State, source: Source
) -> tuple[Tensor, Tensor, State]:
    """Run a recurrent layer over x (B, T, D) that receives, at each position, the context of its previous state.

    Returns its states (B, T, H), the contexts (B, T, M) and its last state.
    """
    states, contexts = [], []
    with joined_steps(cross.tap):
        for word in x.split(1, dim=1):  # (B, 1, D)
            contexts.append(cross(top_state(state), source))
            output, state = cell(torch.cat([word, contexts[-1]], -1), state)
            states.append(output)
    return torch.cat(states, 1), torch.cat(contexts, 1), state


def top_state(state: State) -> Tensor:
    """Return the hidden state of the last layer, (B, 1, H)."""
    return batch_first(state)[0][:, -1:]


class Decoder(nn.Module):
    """Decoder of both papers: embedded words (B, T, D) -> attentional vectors (B, T, D)."""

    def __init__(self, c: RNNAttentionConfig) -> None:
        super().__init__()
        self.order, self.input_feeding = c.order, c.input_feeding
        fed = c.hidden if c.order == "before" else c.width if c.input_feeding else 0
        self.cell = recurrent_layers(c.cell, c.width + fed, c.hidden, c.layers, dropout=c.dropout)
        self.cross = StateAttention(c.hidden, c.hidden, c.scores)
        self.combine = nn.Linear(2 * c.hidden, c.width, bias=False)

    def forward(self, x: Tensor, state: State, last: Tensor, source: Source) -> tuple[Tensor, State]:
        """Return the attentional vectors and the last state.

        last  attentional vector of the last position, (B, 1, D), for input feeding
        """
        if self.order == "before":
            states, contexts, state = attend_before(self.cell, self.cross, x, state, source)
            return self._combined(states, contexts), state
        if not self.input_feeding:
            states, state = self.cell(x, state)
            return self._combined(states, self.cross(states, source)), state
        vectors = []
        with joined_steps(self.cross.tap):
            for word in x.split(1, dim=1):  # (B, 1, D)
                output, state = self.cell(torch.cat([word, last], -1), state)
                last = self._combined(output, self.cross(output, source))
                vectors.append(last)
        return torch.cat(vectors, 1), state

    def _combined(self, states: Tensor, contexts: Tensor) -> Tensor:
        combined: Tensor = self.combine(torch.cat([contexts, states], -1))
        return combined.tanh()


class RNNAttention(EncoderDecoder[RNNAttentionConfig, StateCache]):
    """Recurrent encoder-decoder with attention. Source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: RNNAttentionConfig) -> None:
        super().__init__(config)
        c = config
        self.encoder = recurrent_layers(c.cell, c.width, c.hidden // 2, c.layers, directions=2, dropout=c.dropout)
        self.keys = nn.Linear(c.hidden, c.hidden, bias=False) if c.scores == "additive" else nn.Identity()
        self.decoder = Decoder(c)
        self.add_output()

    def hidden(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Return the attentional vectors, (B, Tt, D)."""
        memory, state = self._read(source, source_lengths)
        last = memory.new_zeros(len(memory), 1, self.config.width)
        return self._write(target, state, last, Source(self.keys(memory), memory, source_lengths))[0]

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StateCache:
        """Encode the source (B, Ts) and return a cache for `step`.

        `capacity` has no effect, because the cache has a constant size.
        """
        memory, state = self._read(source, source_lengths)
        last = memory.new_zeros(len(memory), 1, self.config.width)
        return StateCache([*batch_first(state), last], [self.keys(memory), memory, source_lengths])

    def step(self, tokens: Tensor, cache: StateCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T)."""
        *state, last = cache.states
        vectors, new = self._write(tokens, layers_first(state), last, Source.of(cache))
        cache.states, cache.lengths = [*batch_first(new), vectors[:, -1:]], cache.lengths + tokens.shape[1]
        return self.project(vectors)

    def _read(self, source: Tensor, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Return the states of the encoder, (B, Ts, hidden), and the first state of the decoder.

        The first state concatenates the last states of both directions. Bahdanau 2015 instead projects the last state
        of the backward direction.
        """
        x = dropout(self.source_embedding(source), self.config.dropout, self.training)  # (B, Ts, D)
        memory, state = read_texts(self.encoder, x, lengths)
        # (B, 2 * layers, hidden / 2) -> (B, layers, hidden)
        return memory, layers_first([torch.cat([part[:, 0::2], part[:, 1::2]], -1) for part in batch_first(state)])

    def _write(self, target: Tensor, state: State, last: Tensor, source: Source) -> tuple[Tensor, State]:
        x = dropout(self.target_embedding(target), self.config.dropout, self.training)
        vectors, state = self.decoder(x, state, last, source)
        return dropout(vectors, self.config.dropout, self.training), state
