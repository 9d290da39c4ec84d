"""The textbook's text classifier: one encoder block in the form that Keras gives it, pooled into one vector.

    words -> embed (+ positions) -> N x [self-attention, feed-forward] -> max or mean over the text -> dropout -> logits

Chollet, "Deep Learning with Python" (second edition, section 11.4), in the smaller size of the chapter: the block has
10,656 parameters, the model 650,689. Keras's heads do not divide the width: each of the 2 is 32 wide, as the model is.

    query, key, value  3 x (32 x 64 + 64) =  6,336        feed-forward  2 x (32 x 32 + 32) = 2,112
    output                  64 x 32 + 32  =  2,080        layer norms   2 x (32 + 32)      =   128

As published, every text is filled up to 600 words, the padding is read and pooled like words, and there are no
positions, so the order of the words is lost. The preset `corrected` has positions and leaves the padding out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import Classes, Config, Epsilon, Layers, Length, Rate, Size, TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.layers import FeedForward, TokenEmbedding, xavier_uniform
from manyheads.core.masks import Mask
from manyheads.core.positions import Layout, Positions
from manyheads.errors import UserError


@dataclass(frozen=True)
class TextClassifierConfig(Config):
    """Sizes and choices; the defaults are those of the chapter.

    labels         what is told apart, by the index of the logit
    head_width     of each head, free of `width`
    positions      "none", "learned", or one of the sinusoidal layouts
    masked         False: padding is read like words, up to `max_positions` of them
    max_positions  words a text may have
    dropout        before the output
    """

    vocab: Vocabulary = 20_000
    labels: Classes = ("negative", "positive")
    pad: TokenId = 0
    width: Size = 32
    heads: Size = 2
    head_width: Size = 32
    feed_forward: Size = 32
    layers: Layers = 1
    positions: Layout | Literal["none", "learned"] = "none"
    masked: bool = False
    pooling: Literal["max", "mean"] = "max"
    max_positions: Length = 600
    dropout: Rate = 0.5
    norm_eps: Epsilon = 1e-3


class TextClassifier(nn.Module):
    """Tokens in, logits over the labels out."""

    def __init__(self, config: TextClassifierConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = TokenEmbedding(c.vocab, c.width)
        self.positions = None if c.positions == "none" else Positions(c.max_positions, c.width, c.positions)
        biased = not c.masked and self.positions is None  # `_read_padding` counts the padding
        self.encoder = Stack([_block(c) for _ in range(c.layers)], biased=biased)
        self.output = nn.Linear(c.width, units(c.labels))
        self._initialize()

    def _initialize(self) -> None:
        """Keras's: Glorot's uniform weights, zero biases, embeddings from U(-0.05, 0.05)."""
        c = self.config
        xavier_uniform(self)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        if c.positions == "learned" and self.positions is not None:
            nn.init.uniform_(self.positions.table, -0.05, 0.05)
        # Keras keeps the heads as an axis of the kernel and counts its inputs and outputs as of a convolution:
        # query (D, H, Dh) has H * D in and D * Dh out, output (H, Dh, D) has H * Dh in and H * D out
        inwards = math.sqrt(6 / (c.heads * c.width + c.width * c.head_width))
        outwards = math.sqrt(6 / (c.heads * c.head_width + c.heads * c.width))
        for attention in (module for module in self.modules() if isinstance(module, Attention)):
            for layer in (attention.query, attention.key, attention.value):
                nn.init.uniform_(layer.weight, -inwards, inwards)
            nn.init.uniform_(attention.output.weight, -outwards, outwards)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T), of which lengths (B,) are real (None: all) -> logits (B, L). Segments are not read."""
        c = self.config
        if tokens.shape[1] > c.max_positions:
            raise UserError(f"the input has {tokens.shape[1]} tokens, the model takes {c.max_positions}: truncate it")
        if lengths is None:
            lengths = torch.full(tokens.shape[:1], tokens.shape[1], device=tokens.device)
        counts = None
        if not c.masked:
            tokens, lengths, counts = self._read_padding(tokens, lengths)
        x = self.embedding(tokens)  # (B, T, D)
        x = x if self.positions is None else self.positions(x)
        bias = None if counts is None else counts.log()[:, None, None, :]  # (B, 1, 1, T)
        x = self.encoder(x, mask=Mask(key_lengths=lengths), bias=bias)
        pooled = pool(x, lengths, c.pooling, counts)  # (B, D)
        return both_logits(self.output(dropout(pooled, c.dropout, self.training)))

    def _read_padding(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Texts filled up to `max_positions`: tokens, lengths, and how often each token counts (B, T).

        Without positions all the padding of a text is alike, and n equal keys weigh as much as one whose score is
        log(n) higher: one stands for all, which gives the same numbers for a fraction of the work.
        """
        c = self.config
        at = torch.arange(tokens.shape[1], device=tokens.device)
        tokens = tokens.masked_fill(at >= lengths[:, None], c.pad)
        if self.positions is not None:
            tokens = F.pad(tokens, (0, c.max_positions - tokens.shape[1]), value=c.pad)
            return tokens, torch.full_like(lengths, c.max_positions), None
        tokens = F.pad(tokens, (0, 1), value=c.pad)
        missing = c.max_positions - lengths  # (B,)
        counts = torch.ones(tokens.shape, dtype=self.embedding.weight.dtype, device=tokens.device)
        counts.scatter_(1, lengths[:, None], missing.clamp(min=1)[:, None].to(counts.dtype))
        return tokens, lengths + (missing > 0), counts


def units(labels: tuple[str, ...]) -> int:
    """Units of the output: one for two labels, as the sigmoid of the chapter; else one for each."""
    return 1 if len(labels) == 2 else len(labels)


def both_logits(outputs: Tensor) -> Tensor:
    """Output units (B, 1) or (B, L) -> logits (B, L). softmax(0, z) is (1 - sigmoid(z), sigmoid(z)): one unit is enough
    for two labels, and cross-entropy on these logits is the chapter's binary one."""
    return F.pad(outputs, (1, 0)) if outputs.shape[1] == 1 else outputs


def pool(x: Tensor, lengths: Tensor, how: str, counts: Tensor | None = None) -> Tensor:
    """x (B, T, D) -> (B, D): maximum or mean over the real positions, each counted as often as `counts` (B, T) says."""
    real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # (B, T)
    if how == "max":
        return x.masked_fill(~real[..., None], -math.inf).amax(1)
    weights = real.to(x.dtype) if counts is None else real * counts
    return (x * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)


def _block(c: TextClassifierConfig) -> Block:
    return Block(Attention(c.width, c.heads, c.head_width), FeedForward(c.width, c.feed_forward), norm_eps=c.norm_eps)
