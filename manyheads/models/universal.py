"""The Universal Transformer (Dehghani 2018): one block applied repeatedly, as an encoder-decoder or a single stack.

    source  -> embed * sqrt(D) -> one block [self-attention, transition], repeated                   -> memory
    target  -> embed * sqrt(D) -> one block [causal self-attention, cross, transition], repeated     -> logits

The transition is a feed-forward network or a pair of convolutions. All steps share their weights, so the block learns
an operation and not a layer. See `recurrence.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from manyheads.core.config import TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.interface import Generates
from manyheads.core.layers import TokenEmbedding, xavier_uniform
from manyheads.core.masks import Mask
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from manyheads.models.recurrence import HaltingStatistics, PonderState, Recurrence, RecurrenceConfig, StepCache


@dataclass(frozen=True, kw_only=True)
class UniversalConfig(RecurrenceConfig, EncoderDecoderConfig):
    """Sizes and options of a Universal Transformer encoder-decoder.

    tie  matrices that are shared. "all" shares source embedding, target embedding and output; "target" shares target
         embedding and output
    """

    tie: Literal["all", "target"] = "all"


@dataclass(frozen=True, kw_only=True)
class UniversalSequenceConfig(RecurrenceConfig):
    """Sizes and options of a Universal Transformer with a single stack.

    head  "decoder": a position attends to itself and earlier positions; "encoder": to all positions
    end   token between documents, if the vocabulary has one
    """

    vocab: Vocabulary
    head: Literal["decoder", "encoder"] = "decoder"
    end: TokenId | None = None


class Universal(EncoderDecoder[UniversalConfig, StepCache]):
    """Universal Transformer encoder-decoder. Source and target tokens in, logits over the target vocabulary out."""

    needs_lengths = True

    def __init__(self, config: UniversalConfig) -> None:
        super().__init__(config)
        self.encoder = Recurrence(config, causal=False, cross=False)
        self.decoder = Recurrence(config, causal=True, cross=True)
        self.add_output()
        _initialize(self, config)

    def hidden(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None,
        offset: int | Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the last hidden states of the decoder, (B, Tt, D); see `forward_with_halting`."""
        return self.forward_with_halting(source, source_lengths, target, target_lengths, offset)[0]

    def forward_with_halting(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None,
        offset: int | Tensor | None = None,
    ) -> tuple[Tensor, HaltingStatistics]:  # fmt: skip
        """Return the last hidden states (B, Tt, D) of the decoder, before the output projection.

        Also returns the number of steps that every position took.

        offset  first position of source and target of each row, (B,). By default, 0
        """
        memory_mask = Mask(key_lengths=source_lengths)
        memory, encoder_state = self._read(source, memory_mask, offset)
        hidden, decoder_state = self.decoder(
            _embed(self, self.target_embedding, target), mask=Mask(causal=True, key_lengths=target_lengths),
            memory=memory, memory_mask=memory_mask, offset=offset,
        )  # fmt: skip
        states = {"encoder": encoder_state, "decoder": decoder_state}
        return hidden, {stack: ponder for stack, ponder in states.items() if ponder is not None}

    def encode(self, source: Tensor, mask: Mask | None = None) -> Tensor:
        """Return the last hidden states of the encoder, (B, Ts, D)."""
        return self._read(source, mask or Mask())[0]

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> StepCache:
        """Encode the source (B, Ts) and return a cache for `step` with at most `capacity` target positions."""
        memory, _ = self._read(source, Mask(key_lengths=source_lengths))
        cache = StepCache(self.config, source.shape[0], capacity, memory)
        assert self.decoder.block.cross is not None
        # The block is the same at every step, so the keys and values of the encoder output are computed once.
        entries = self.decoder.block.cross.project_keys_values(memory)
        for step in range(self.config.steps):
            cache.set_cross(step, *entries, source_lengths)
        return cache

    def step(self, tokens: Tensor, cache: StepCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T). During generation, T = 1."""
        hidden, _ = self.decoder(
            _embed(self, self.target_embedding, tokens), mask=cache.mask(tokens.shape[1]),
            memory_mask=cache.cross_mask(), cache=cache, offset=cache.offset,
        )  # fmt: skip
        cache.advance(tokens.shape[1])
        return self.project(hidden)

    def _read(
        self, source: Tensor, mask: Mask, offset: int | Tensor | None = None
    ) -> tuple[Tensor, PonderState | None]:
        return self.encoder(_embed(self, self.source_embedding, source), mask=mask, offset=offset)


class UniversalSequence(Generates[UniversalSequenceConfig, StepCache]):
    """Universal Transformer with a single stack.

    Tokens in, logits of the next token (decoder) or of each token (encoder) out.
    """

    def __init__(self, config: UniversalSequenceConfig) -> None:
        super().__init__(config, max_positions=config.max_positions, head=config.head)
        c = config
        self.embedding, self.output_bias = TokenEmbedding(c.vocab, c.width, scaled=True), None
        self.stack = Recurrence(c, causal=c.head == "decoder", cross=False)
        _initialize(self, c)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V) for tokens (B, T).

        lengths  number of real tokens of each row, (B,). By default, all tokens are real
        """
        return self.project(self.hidden(tokens, lengths))

    def hidden(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the hidden states after the last step, (B, T, D)."""
        return self.forward_with_halting(tokens, lengths)[0]

    def forward_with_halting(
        self, tokens: Tensor, lengths: Tensor | None = None, offset: int | Tensor | None = None
    ) -> tuple[Tensor, HaltingStatistics]:
        """Return the last hidden states (B, T, D), and the number of steps of every position.

        Row b of the batch begins at position offset[b].
        """
        mask = Mask(causal=self.config.head == "decoder", key_lengths=lengths)
        hidden, ponder = self.stack(_embed(self, self.embedding, tokens), mask=mask, offset=offset)
        return hidden, {} if ponder is None else {self.config.head: ponder}

    @property
    def output_weight(self) -> Tensor:
        """Return the matrix of the output projection, (V, D), which is the embedding."""
        return self.embedding.weight

    def start(self, batch: int, capacity: int) -> StepCache:
        """Return an empty cache of a decoder for `step` with at most `capacity` positions."""
        assert self.config.head == "decoder", "only the head 'decoder' can generate"
        return StepCache(self.config, batch, capacity, self.embedding.weight)

    def step(self, tokens: Tensor, cache: StepCache, at: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T).

        at  for each row, the index of the only token whose logits are needed, as in `GPT.step`
        """
        x, mask = _embed(self, self.embedding, tokens), cache.mask(tokens.shape[1])
        hidden, _ = self.stack(x, mask=mask, cache=cache, offset=cache.offset)
        cache.advance(tokens.shape[1])
        return self.project(hidden if at is None else hidden[torch.arange(len(at), device=at.device), at][:, None])


def _initialize(model: nn.Module, c: RecurrenceConfig) -> None:
    xavier_uniform(model)
    for module in model.modules():
        if isinstance(module, Recurrence) and module.halt is not None:
            nn.init.constant_(module.halt.bias, c.halting_bias)


def _embed(model: Universal | UniversalSequence, embedding: TokenEmbedding, tokens: Tensor) -> Tensor:
    return dropout(embedding(tokens), model.config.dropout, model.training)  # (B, T) -> (B, T, D)
