"""The encoder-decoder of "Attention Is All You Need" (Vaswani 2017).

An encoder processes all positions of the source at once. A decoder writes the target from left to right: each position
attends to the positions before it (causal self-attention) and to the whole source (cross-attention).

    source  -> embed * sqrt(D) + positions -> N x [self-attention, feed-forward]                  -> memory
    target  -> embed * sqrt(D) + positions -> N x [causal self-attention, cross, feed-forward]    -> logits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.cache import KVCache
from manyheads.core.config import Epsilon, Heads, Layers, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.experts import ExpertConfig, make_experts
from manyheads.core.layers import BatchNorm, FeedForward, TokenEmbedding, xavier_uniform
from manyheads.core.masks import Mask
from manyheads.core.positions import Layout, PositionTable
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "batch": BatchNorm, "none": nn.Identity}


@dataclass(frozen=True)
class TransformerConfig(EncoderDecoderConfig, ExpertConfig):
    """Sizes and options of a Transformer.

    feed_forward   "dense", or "experts": each feed-forward network is a mixture of experts
    norm           "post": after each residual sum, as published; "pre": before each sublayer
    normalization  kind of all norms: "layer", as published; "batch": each channel over the real tokens of the batch, in
                   eval mode with running statistics; "none": x + f(x) without a norm
    final_norm     if True, a norm follows each stack of blocks, as in torch.nn.Transformer but not in the paper
    key_width      width of the queries and keys of a head. By default, the width of the values (smaller in Table 3, row
                   B)
    embedding_init "normal": N(0, 1 / width); "xavier": as for all other matrices (the PyTorch tutorial)
    """

    encoder_layers: Layers = 6
    decoder_layers: Layers = 6
    encoder_heads: Heads = 8
    decoder_heads: Heads = 8
    encoder_feed_forward: Size = 2048
    decoder_feed_forward: Size = 2048
    feed_forward: Literal["dense", "experts"] = "dense"
    activation: str = "relu"
    norm: Literal["post", "pre"] = "post"
    normalization: Literal["layer", "batch", "none"] = "layer"
    final_norm: bool = False
    norm_eps: Epsilon = 1e-5
    attention_bias: bool = True
    key_width: Size | None = None
    scale_embedding: bool = True
    positions: Layout | Literal["learned"] = "concatenated"
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0
    embedding_init: Literal["normal", "xavier"] = "normal"


class Transformer(EncoderDecoder[TransformerConfig, KVCache]):
    """Transformer encoder-decoder. Source and target tokens in, logits over the target vocabulary out."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, scaled=config.scale_embedding)
        c = config
        # Padding must not take capacity of the experts, nor count in the statistics of batch normalization.
        self.needs_lengths = c.feed_forward == "experts" or c.normalization == "batch"
        self.positions = PositionTable(c.max_positions, c.width, c.positions)
        self.encoder, self.decoder = (
            Stack(
                [_block(c, heads, hidden, cross=cross) for _ in range(layers)],
                NORMS[c.normalization](c.width, eps=c.norm_eps) if c.final_norm else None,
            )
            for layers, heads, hidden, cross in (
                (c.encoder_layers, c.encoder_heads, c.encoder_feed_forward, False),
                (c.decoder_layers, c.decoder_heads, c.decoder_feed_forward, True),
            )
        )
        self.add_output()
        xavier_uniform(self)
        if c.embedding_init == "xavier":
            for embedding in dict.fromkeys((self.source_embedding, self.target_embedding)):
                nn.init.xavier_uniform_(embedding.weight)
                embedding._fill_padding_idx_with_zero()

    def hidden(
        self, source: Tensor, source_lengths: Tensor | None, target: Tensor, target_lengths: Tensor | None = None,
        offset: int | Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the hidden states of the last decoder layer, (B, Tt, D), before the output projection.

        Without target lengths, the causal mask hides later padding from real positions.

        offset  first position of source and target of each row, (B,). By default, 0
        """
        memory_mask = Mask(key_lengths=source_lengths)
        return self.decoder(
            self._embed(self.target_embedding, target, offset),
            mask=Mask(causal=True, key_lengths=target_lengths),
            memory=self.encode(source, memory_mask, offset),
            memory_mask=memory_mask,
        )

    def encode(self, source: Tensor, mask: Mask | None = None, offset: int | Tensor | None = None) -> Tensor:
        """Return the encoder output, called memory, (B, Ts, D), for source (B, Ts)."""
        return self.encoder(self._embed(self.source_embedding, source, offset), mask=mask)

    def start(self, source: Tensor, source_lengths: Tensor | None, capacity: int) -> KVCache:
        """Encode the source (B, Ts) and return a cache for `step` with at most `capacity` target positions."""
        mask = Mask(key_lengths=source_lengths)
        memory = self.encode(source, mask)
        cache = self.decoder.new_cache(source.shape[0], capacity, memory)
        for layer, block in enumerate(self.decoder.blocks):
            assert isinstance(block, Block)
            assert block.cross is not None
            key, value = block.cross.project_keys_values(memory)
            cache.set_cross(layer, key, value, source_lengths)
        return cache

    def step(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Return the logits (B, T, V) after each of the next tokens (B, T). During generation, T = 1."""
        queries = tokens.shape[1]
        hidden = self.decoder(
            self._embed(self.target_embedding, tokens, cache.offset),
            mask=cache.mask(queries),
            memory_mask=cache.cross_mask(),
            cache=cache,
        )
        cache.advance(queries)
        return self.project(hidden)

    def _embed(self, embedding: TokenEmbedding, tokens: Tensor, offset: int | Tensor | None = None) -> Tensor:
        x = self.positions(embedding(tokens), offset)  # (B, T, D)
        return dropout(x, self.config.dropout, self.training)


def _block(c: TransformerConfig, heads: int, feed_forward: int, *, cross: bool) -> Block:
    def attention() -> Attention:
        return Attention(c.width, heads, key_width=c.key_width, bias=c.attention_bias, dropout=c.attention_dropout)

    experts, sizes = c.feed_forward == "experts", (c.width, feed_forward, c.activation, c.activation_dropout)
    return Block(
        attention(), make_experts(c, *sizes) if experts else FeedForward(*sizes),
        attention() if cross else None, norm=c.norm, dropout=c.dropout, norm_eps=c.norm_eps,
        norm_type=NORMS[c.normalization],
    )  # fmt: skip
