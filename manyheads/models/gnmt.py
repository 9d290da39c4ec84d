"""Deep recurrent translator in the style of GNMT, Google's neural machine translation system (Wu 2016).

    source  -> embed -> bidirectional LSTM -> LSTMs, with residual connections from the third layer on  -> memory
    target  -> embed -> LSTM with attention to memory -> LSTMs, which also read the contexts            -> logits

The lowest layer of the decoder attends with its previous state, so the layers above it need no loop over positions.
With feed_forward=experts, a mixture of experts precedes the highest LSTM of the encoder and of the decoder, and
residual connections begin at the second layer (Shazeer 2017, appendix E).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from manyheads.core.cache import StateCache
from manyheads.core.config import FieldError, Layers, Length, Size
from manyheads.core.dropout import dropout
from manyheads.core.experts import ExpertConfig, make_experts
from manyheads.core.recurrent import LSTM, State, batch_first, layers_first, read_texts
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from manyheads.models.rnn_attention import Source, StateAttention, attend_before, check_hidden

# index of the first layer whose input is added to its output (Wu 2016, figure 1; Shazeer 2017, appendix E)
FIRST_RESIDUAL = {"none": 2, "experts": 1}


@dataclass(frozen=True)
class DeepConfig(EncoderDecoderConfig):
    """Sizes of a deep recurrent translator.

    layers          number of layers of the encoder
    decoder_layers  number of layers of the decoder. By default, as many as in the encoder
    hidden          number of units of a layer
    max_positions   maximum number of tokens of a text; the model itself has no such limit
    """

    output_bias: bool = True
    width: Size = 128
    max_positions: Length = 10_000
    layers: Layers = 4
    decoder_layers: Layers | None = None
    hidden: Size = 128

    @property
    def decoder_depth(self) -> int:
        """Number of layers of the decoder."""
        return self.decoder_layers or self.layers


@dataclass(frozen=True)
class GNMTConfig(DeepConfig, ExpertConfig):
    """Sizes and options of the model, in addition to the fields of `DeepConfig`.

    hidden        number of units of a layer; the lowest layer of the encoder has half of them in each direction
    dropout       dropout of the inputs of the layers, except the contexts in the lowest layer of the decoder, of the
                  outputs of experts, and of the highest states
    feed_forward  "none", or "experts": a mixture of experts before the highest layer of each side. By default, an
                  expert has 4 * hidden hidden units
    """

    feed_forward: Literal["none", "experts"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hidden(self.hidden)
        if self.feed_forward == "experts":
            if min(self.layers, self.decoder_depth) < 2:
                raise FieldError("feed_forward", "is experts: expected at least 2 layers of each side, to be between")
            if self.top_k < 2:  # The only probability would be normalized to 1, so the router would not learn.
                raise FieldError("top_k", f"is {self.top_k}: expected at least 2 experts per token between LSTMs")


class ExpertsBetween(nn.Module):
    """Mixture of experts between two LSTMs: x + sigmoid(experts(x)), for x (B, T, H)."""

    def __init__(self, c: GNMTConfig) -> None:
        super().__init__()
        self.experts = make_experts(c, c.hidden, 4 * c.hidden, "relu", normalized=True)
        self.dropout = c.dropout

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        outputs: Tensor = self.experts(x, lengths)
        return x + dropout(outputs.sigmoid(), self.dropout, self.training)


class GNMTDecoder(nn.Module):
    """Decoder: embedded words (B, T, D) -> states of the highest layer (B, T, H)."""

    def __init__(self, c: GNMTConfig) -> None:
        super().__init__()
        self.dropout = c.dropout
        self.lowest = LSTM(c.width + c.hidden, c.hidden, batch_first=True)
        self.cross = StateAttention(c.hidden, c.hidden, "additive")
        others = range(c.decoder_depth - 1)
        self.layers = nn.ModuleList(LSTM(2 * c.hidden, c.hidden, batch_first=True) for _ in others)
        self.mixture = ExpertsBetween(c) if c.feed_forward == "experts" else None
        self.first_residual = FIRST_RESIDUAL[c.feed_forward]

    def forward(
        self, x: Tensor, states: Sequence[State], source: Source, lengths: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Return the states of the highest layer, and the last state of every layer.

        lengths  (B,) number of real tokens of each row. By default, all tokens are real
        """
        x, contexts, state = attend_before(self.lowest, self.cross, x, states[0], source)
        last = [state]
        for index, (layer, first) in enumerate(zip(self.layers, states[1:], strict=True), 1):
            if self.mixture is not None and index == len(self.layers):
                x = self.mixture(x, lengths)
            read = dropout(torch.cat([x, contexts], -1), self.dropout, self.training)
            outputs, state = layer(read, first)
            x = outputs + x if index >= self.first_residual else outputs
            last.append(state)
        return x, last


D_co = TypeVar("D_co", bound=DeepConfig, covariant=True)


class DeepTranslator(EncoderDecoder[D_co, StateCache]):
    """Base class of deep recurrent translators, whose decoders attend in the lowest layer only.

    A subclass defines `encode`, and builds `keys`, `decoder` and `combine`. The arguments of `decoder` are those of
    `GNMTDecoder`. `combine` maps its output to the width of the embeddings, unless it has this width.
    """

    keys: nn.Module
    decoder: nn.Module
    combine: nn.Module | None

    def encode(self, source: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the memory (B, Ts, H) to which the decoder attends, for source (B, Ts)."""
        raise NotImplementedError

    def hidden(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None
    ) -> Tensor:
        """Return the states of the decoder, (B, Tt, D)."""
        memory = self.encode(source, source_lengths)
        attended = Source(self.keys(memory), memory, source_lengths)
        return self._write(target, self._first_states(memory), attended, target_lengths)[0]

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
        return [(zeros, zeros)] * self.config.decoder_depth

    def _write(
        self, target: Tensor, states: Sequence[State], source: Source, lengths: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        x = dropout(self.target_embedding(target), self.config.dropout, self.training)
        hidden, last = self.decoder(x, states, source, lengths)
        hidden = dropout(hidden, self.config.dropout, self.training)
        return hidden if self.combine is None else self.combine(hidden), last


class GNMT(DeepTranslator[GNMTConfig]):
    """Encoder-decoder of deep LSTMs. Source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: GNMTConfig) -> None:
        super().__init__(config)
        c = config
        self.needs_lengths = c.feed_forward == "experts"  # Padding must not take capacity of the experts.
        lowest = LSTM(c.width, c.hidden // 2, batch_first=True, bidirectional=True)
        others = (LSTM(c.hidden, c.hidden, batch_first=True) for _ in range(c.layers - 1))
        self.encoder = nn.ModuleList([lowest, *others])
        self.mixture = ExpertsBetween(c) if c.feed_forward == "experts" else None
        self.keys = nn.Linear(c.hidden, c.hidden, bias=False)
        self.decoder = GNMTDecoder(c)
        self.combine = None if c.hidden == c.width else nn.Linear(c.hidden, c.width)
        self.add_output()

    def encode(self, source: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the states of the highest layer of the encoder, (B, Ts, hidden)."""
        x = self.source_embedding(source)  # (B, Ts, D)
        for index, layer in enumerate(self.encoder):
            assert isinstance(layer, nn.RNNBase)
            if self.mixture is not None and index == len(self.encoder) - 1:
                x = self.mixture(x, lengths)
            outputs, _ = read_texts(layer, dropout(x, self.config.dropout, self.training), lengths)
            x = outputs + x if index >= FIRST_RESIDUAL[self.config.feed_forward] else outputs
        return x
