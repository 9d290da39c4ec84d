"""The Universal Transformer (Dehghani 2018): an encoder-decoder, or one stack, with the recurrence of `recurrence.py`.

    source  -> embed * sqrt(D) -> one block [self-attention, transition], repeated                   -> memory
    target  -> embed * sqrt(D) -> one block [causal self-attention, cross, transition], repeated     -> logits

Depth is tied, so the block learns an operation and not a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.layers import TokenEmbedding, xavier_uniform
from manyheads.core.masks import Mask
from manyheads.models.recurrence import PonderState, Recurrence, RecurrenceConfig, StepCache, Thoughts
from manyheads.models.transformer import SourceId, TargetId, check_vocabularies


@dataclass(frozen=True, kw_only=True)
class UniversalConfig(RecurrenceConfig):
    """An encoder-decoder.

    tie         "all": one matrix for source, target and output; "target": for target and output
    start       the token that decoding begins from
    source_pad  the padding token of a source vocabulary of its own
    """

    source_vocab: Vocabulary
    target_vocab: Vocabulary
    pad: TargetId
    end: TargetId
    start: TargetId
    tie: Literal["all", "target"] = "all"
    source_pad: SourceId | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabularies(self)


@dataclass(frozen=True, kw_only=True)
class UniversalSequenceConfig(RecurrenceConfig):
    """One recurrence: a decoder, where a position sees those before it (`head`), or an encoder, where it sees all.

    end  the token between documents, where the vocabulary has one
    """

    vocab: Vocabulary
    head: Literal["decoder", "encoder"] = "decoder"
    end: TokenId | None = None


class _Universal(nn.Module):
    """What the forms have in common."""

    config: Any

    def project(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) -> logits (..., V)."""
        return F.linear(hidden, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """The output projection (V, D), tied to the embedding of what is written."""
        raise NotImplementedError

    def _initialize(self) -> None:
        xavier_uniform(self)
        for module in self.modules():
            if isinstance(module, Recurrence) and module.halt is not None:
                nn.init.constant_(module.halt.bias, self.config.halting_bias)

    def _embed(self, embedding: TokenEmbedding, tokens: Tensor) -> Tensor:
        return dropout(embedding(tokens), self.config.dropout, self.training)  # (B, T) -> (B, T, D)


class Universal(_Universal):
    """The encoder-decoder: source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: UniversalConfig) -> None:
        super().__init__()
        self.config = c = config
        self.source_pad = c.pad if c.source_pad is None else c.source_pad
        self.source_embedding = TokenEmbedding(c.source_vocab, c.width, self.source_pad, scaled=True)
        self.target_embedding = (
            self.source_embedding if c.tie == "all" else TokenEmbedding(c.target_vocab, c.width, c.pad, scaled=True)
        )
        self.encoder = Recurrence(c, causal=False, cross=False)
        self.decoder = Recurrence(c, causal=True, cross=True)
        self.output_bias = None
        self._initialize()

    def forward(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None
    ) -> Tensor:
        """source (B, Ts), target (B, Tt) beginning with the start token -> logits (B, Tt, V) of what follows.

        Lengths (B,) tell how many tokens of each row are real.
        """
        return self.project(self.forward_with_halting(source, source_lengths, target, target_lengths)[0])

    def forward_with_halting(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None,
        offset: int | Tensor | None = None,
    ) -> tuple[Tensor, Thoughts]:  # fmt: skip
        """The decoder's last states (B, Tt, D), before the output projection, and how long every position thought.

        offset  (B,) the position that source and target of each row begin at; None: 0
        """
        memory_mask = Mask(key_lengths=source_lengths)
        memory, reading = self._read(source, memory_mask, offset)
        hidden, writing = self.decoder(
            self._embed(self.target_embedding, target), mask=Mask(causal=True, key_lengths=target_lengths),
            memory=memory, memory_mask=memory_mask, offset=offset,
        )  # fmt: skip
        pondered = {"encoder": reading, "decoder": writing}
        return hidden, {stack: ponder for stack, ponder in pondered.items() if ponder is not None}

    def encode(self, source: Tensor, mask: Mask | None = None) -> Tensor:
        """The encoder's last states (B, Ts, D)."""
        return self._read(source, mask or Mask())[0]

    @property
    def output_weight(self) -> Tensor:
        return self.target_embedding.weight

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StepCache:
        """Read the source (B, Ts): a cache that is ready to `step` through at most `capacity` target positions."""
        memory, _ = self._read(source, Mask(key_lengths=source_lengths))
        cache = StepCache(self.config, source.shape[0], capacity, memory)
        assert self.decoder.block.cross is not None
        entries = self.decoder.block.cross.project_keys_values(memory)  # one block: the same at every step
        for step in range(self.config.steps):
            cache.set_cross(step, *entries, source_lengths)
        return cache

    def step(self, tokens: Tensor, cache: StepCache) -> Tensor:
        """The next tokens (B, T) of each row, T = 1 while generating -> logits (B, T, V) of what follows each."""
        hidden, _ = self.decoder(
            self._embed(self.target_embedding, tokens), mask=cache.mask(tokens.shape[1]),
            memory_mask=cache.cross_mask(), cache=cache, offset=cache.offset,
        )  # fmt: skip
        cache.advance(tokens.shape[1])
        return self.project(hidden)

    def _read(
        self, source: Tensor, mask: Mask, offset: int | Tensor | None = None
    ) -> tuple[Tensor, PonderState | None]:
        return self.encoder(self._embed(self.source_embedding, source), mask=mask, offset=offset)


class UniversalSequence(_Universal):
    """One recurrence: tokens in, logits at every position out, of what follows (decoder) or of what is there."""

    def __init__(self, config: UniversalSequenceConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = TokenEmbedding(c.vocab, c.width, scaled=True)
        self.stack = Recurrence(c, causal=c.head == "decoder", cross=False)
        self._initialize()

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """tokens (B, T), of which lengths (B,) are real (None: all) -> logits (B, T, V)."""
        return self.project(self.hidden(tokens, lengths))

    def hidden(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The last states (B, T, D)."""
        return self.forward_with_halting(tokens, lengths)[0]

    def forward_with_halting(
        self, tokens: Tensor, lengths: Tensor | None = None, offset: int | Tensor | None = None
    ) -> tuple[Tensor, Thoughts]:
        """The last states (B, T, D), and how long every position thought; row b begins at position offset[b]."""
        mask = Mask(causal=self.config.head == "decoder", key_lengths=lengths)
        hidden, ponder = self.stack(self._embed(self.embedding, tokens), mask=mask, offset=offset)
        return hidden, {} if ponder is None else {self.config.head: ponder}

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    def start(self, batch: int, capacity: int) -> StepCache:
        """An empty cache of a decoder, ready to `step` through at most `capacity` positions."""
        assert self.config.head == "decoder", "an encoder sees what is still to come"
        return StepCache(self.config, batch, capacity, self.embedding.weight)

    def step(self, tokens: Tensor, cache: StepCache, at: Tensor | None = None) -> Tensor:
        """The next tokens (B, T) of each row -> logits (B, T, V) of what follows each; `at` as GPT's."""
        x, mask = self._embed(self.embedding, tokens), cache.mask(tokens.shape[1])
        hidden, _ = self.stack(x, mask=mask, cache=cache, offset=cache.offset)
        cache.advance(tokens.shape[1])
        return self.project(hidden if at is None else hidden[torch.arange(len(at), device=at.device), at][:, None])
