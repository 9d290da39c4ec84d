"""GPT (Radford 2018) and GPT-2 (Radford 2019): a stack of blocks that predicts the next token.

    tokens -> embed + learned positions -> N x [causal self-attention, feed-forward] (-> norm) -> logits

GPT norms after each residual sum, as Vaswani 2017. GPT-2 norms before each sublayer and once after the last block, and
draws the projections that write to the residual path smaller by sqrt(2 N), for 2 N of them add up. The output
projection is the embedding matrix (tied).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.cache import KVCache
from manyheads.core.config import Config, from_preset
from manyheads.core.dropout import dropout
from manyheads.core.layers import FeedForward, TokenEmbedding
from manyheads.core.masks import Mask
from manyheads.core.positions import Positions

INIT_STD = 0.02  # of all matrices (Radford 2018, section 4.1)


@dataclass(frozen=True)
class GPTConfig(Config):
    """Sizes and choices. The vocabulary comes from the data or the preset.

    end           the token between documents, where the vocabulary has one: it begins and ends a text
    feed_forward  hidden units; None: 4 * width
    norm          "pre": before each sublayer and after the last block (GPT-2); "post": after each residual sum (GPT)
    bias          in linear layers and layer norms; nanoGPT goes without
    dropout       on what each sublayer adds; `embedding_dropout` on the sum of token and position
    """

    vocab: int
    end: int | None = None
    width: int = 768
    layers: int = 12
    heads: int = 12
    feed_forward: int | None = None
    activation: str = "gelu_tanh"
    norm: Literal["pre", "post"] = "pre"
    norm_eps: float = 1e-5
    bias: bool = True
    max_positions: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.1
    embedding_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by {self.heads} heads")
        if self.end is not None and not 0 <= self.end < self.vocab:
            raise ValueError(f"the end token has id {self.end}, the vocabulary {self.vocab} entries")


def _gpt2(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {"vocab": 50257, "end": 50256, "layers": layers, "width": width, "heads": heads}


def _nano(layers: int, width: int, heads: int, positions: int, rate: float) -> dict[str, Any]:
    """nanoGPT's character models of tiny-shakespeare, with its GELU; both name the vocabulary of that text."""
    rates = {"dropout": rate, "attention_dropout": rate, "embedding_dropout": rate}
    return {"vocab": 65, "layers": layers, "width": width, "heads": heads, "max_positions": positions, "bias": False,
            "activation": "gelu", **rates}  # fmt: skip


PRESETS: dict[str, dict[str, Any]] = {
    "gpt/117m": {"vocab": 40478, "norm": "post", "max_positions": 512},  # Radford 2018, section 4.1
    "gpt2/124m": _gpt2(12, 768, 12),  # Radford 2019, table 2, which miscounts the two smaller ones
    "gpt2/355m": _gpt2(24, 1024, 16),
    "gpt2/774m": _gpt2(36, 1280, 20),
    "gpt2/1558m": _gpt2(48, 1600, 25),
    "gpt2/nano": _nano(4, 128, 4, 64, 0.0),  # for a CPU
    "gpt2/baby": _nano(6, 384, 6, 256, 0.2),  # for a GPU
}


def preset(name: str, **overrides: Any) -> GPTConfig:
    """A configuration by name, with the vocabulary it was published with unless `overrides` give another."""
    return from_preset(GPTConfig, PRESETS, name, overrides)


class GPT(nn.Module):
    """Tokens in, logits of the next token out."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        c = config
        self.embedding = TokenEmbedding(c.vocab, c.width)
        self.positions = Positions(c.max_positions, c.width, "learned")
        norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.norm == "pre" else None
        self.decoder = Stack([_block(c) for _ in range(c.layers)], norm)
        self._initialise()

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> logits (B, T, V) of what follows each.

        lengths   (B,) real tokens of each row. May be left out: no token looks at padding behind it.
        segments  (B, T) numbers of packed documents: a token looks at those of its own document only.
        """
        return self.project(self.hidden(tokens, lengths, segments))

    def hidden(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """The last states (B, T, D), before the output projection."""
        packed = None if segments is None else (segments, segments)
        return self.decoder(self._embed(tokens), mask=Mask(causal=True, key_lengths=lengths, segments=packed))

    def project(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) -> logits (..., V)."""
        return F.linear(hidden, self.output_weight)

    @property
    def output_weight(self) -> Tensor:
        """The output projection (V, D)."""
        return self.embedding.weight

    def start(self, batch: int, capacity: int) -> KVCache:
        """An empty cache that is ready to `step` through at most `capacity` positions."""
        c, like = self.config, self.embedding.weight
        return KVCache(c.layers, batch, c.heads, capacity, c.width // c.heads, dtype=like.dtype, device=like.device)

    def step(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """The next tokens (B, T) of each row -> logits (B, T, V) of what follows each.

        Rows may take up fewer: `cache.advance` with negative numbers forgets the last positions of a row.
        """
        queries = tokens.shape[1]
        hidden = self.decoder(self._embed(tokens, cache.lengths), mask=cache.mask(queries), cache=cache)
        cache.advance(queries)
        return self.project(hidden)

    def example(self, length: int) -> tuple[Tensor, ...]:
        """Inputs of `forward` for one text of so many tokens, zeros."""
        return (torch.zeros(1, length, dtype=torch.long, device=self.embedding.weight.device),)

    def _embed(self, tokens: Tensor, offset: Tensor | None = None) -> Tensor:
        x = self.positions(self.embedding(tokens), offset)  # (B, T, D)
        return dropout(x, self.config.embedding_dropout, self.training)

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=INIT_STD)  # as the positions are
        for module in self.decoder.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)
        for block in self.decoder.blocks if self.config.norm == "pre" else ():
            assert isinstance(block, Block)
            for writing in (block.attention.output, block.feed_forward.contract):
                nn.init.normal_(writing.weight, std=INIT_STD * (2 * self.config.layers) ** -0.5)
        if not self.config.bias:
            for module in self.decoder.modules():
                if isinstance(module, nn.Linear | nn.LayerNorm):
                    module.register_parameter("bias", None)


def _block(c: GPTConfig) -> Block:
    return Block(
        Attention(c.width, c.heads, dropout=c.attention_dropout),
        FeedForward(c.width, 4 * c.width if c.feed_forward is None else c.feed_forward, c.activation),
        norm=c.norm, dropout=c.dropout, norm_eps=c.norm_eps,
    )  # fmt: skip
