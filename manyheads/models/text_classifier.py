"""The text classifier of Chollet's textbook: Transformer encoder blocks as in Keras, pooled into one vector.

    words -> embed (+ positions) -> N x [self-attention, feed-forward] -> max or mean over the text -> dropout -> logits

Source: Chollet, "Deep Learning with Python" (second edition, section 11.4), in the smaller size of the chapter. One
block has 10,656 parameters, the whole model 650,689. In Keras, the heads do not divide the width of the model: each of
the 2 heads is 32 wide, like the model. The parameters of a block are:

    query, key, value  3 x (32 x 64 + 64) =  6,336        feed-forward  2 x (32 x 32 + 32) = 2,112
    output                  64 x 32 + 32  =  2,080        layer norms   2 x (32 + 32)      =   128

In the published model, every text is padded to 600 words, and padding is processed and pooled like words. There are no
positions, so the order of the words is lost. The preset `corrected` has positions and masks the padding.
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
from manyheads.core.config import Classes, Epsilon, LabelConfig, Layers, Length, Rate, Size, TokenId, Vocabulary
from manyheads.core.dropout import dropout
from manyheads.core.interface import Encodes
from manyheads.core.layers import FeedForward, LabelHead, TokenEmbedding, xavier_uniform
from manyheads.core.masks import Mask
from manyheads.core.positions import Layout, PositionTable
from manyheads.errors import UserError


@dataclass(frozen=True)
class TextClassifierConfig(LabelConfig):
    """Sizes and options of the text classifier. The defaults are those of the textbook.

    labels         classes in the order of the logits
    head_width     width of each attention head, independent of `width`
    positions      "none", "learned", or one of the sinusoidal layouts
    masked         if True, padding is masked. If False, texts are padded to `max_positions`, and padding is processed
                   like words
    max_positions  maximum number of words of a text
    dropout        dropout before the output
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


class TextClassifier(Encodes[TextClassifierConfig]):
    """Text classifier of Transformer encoder blocks and pooling. Tokens in, label logits out."""

    def __init__(self, config: TextClassifierConfig) -> None:
        super().__init__(config, pad=config.pad, max_positions=config.max_positions, labels=config.labels)
        c = config
        self.embedding = TokenEmbedding(c.vocab, c.width)
        self.positions = None if c.positions == "none" else PositionTable(c.max_positions, c.width, c.positions)
        # An attention bias lets one padding token have the attention weight of all padding tokens; see `_read_padding`.
        biased = not c.masked and self.positions is None
        self.encoder = Stack([_block(c) for _ in range(c.layers)], biased=biased)
        self.output = LabelHead(c.width, units(c.labels, c.target))
        self._initialize()

    @property
    def stack(self) -> Stack:
        return self.encoder

    def _initialize(self) -> None:
        """Initialize the weights as Keras does.

        Glorot's uniform weights, zero biases, embeddings from U(-0.05, 0.05).
        """
        c = self.config
        xavier_uniform(self)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        if c.positions == "learned" and self.positions is not None:
            nn.init.uniform_(self.positions.table, -0.05, 0.05)
        # Keras stores attention projections as tensors with an axis for the heads, and computes fan-in and fan-out as
        # for a convolution. Query (D, H, Dh) has fan-in H * D and fan-out D * Dh; output (H, Dh, D) has fan-in H * Dh
        # and fan-out H * D.
        inwards = math.sqrt(6 / (c.heads * c.width + c.width * c.head_width))
        outwards = math.sqrt(6 / (c.heads * c.head_width + c.heads * c.width))
        for attention in (module for module in self.modules() if isinstance(module, Attention)):
            for layer in (attention.query, attention.key, attention.value):
                nn.init.uniform_(layer.weight, -inwards, inwards)
            nn.init.uniform_(attention.output.weight, -outwards, outwards)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return label logits (B, L) for tokens (B, T). The argument segments is ignored.

        lengths  number of real tokens of each row, (B,). By default, all tokens are real
        """
        c = self.config
        if tokens.shape[1] > c.max_positions:
            raise UserError(
                f"the input has {tokens.shape[1]} tokens, but the model takes at most {c.max_positions}: truncate it"
            )
        if lengths is None:
            lengths = torch.full(tokens.shape[:1], tokens.shape[1], device=tokens.device)
        counts = None
        if not c.masked:
            tokens, lengths, counts = self._read_padding(tokens, lengths)
        x = self.embedding(tokens)  # (B, T, D)
        x = x if self.positions is None else self.positions(x)
        bias = None if counts is None else counts.log()[:, None, None, :]  # bias of the attention scores, (B, 1, 1, T)
        x = self.encoder(x, mask=Mask(key_lengths=lengths), bias=bias)
        pooled = pool(x, lengths, c.pooling, counts)  # (B, D)
        return both_logits(self.output(dropout(pooled, c.dropout, self.training)), c.labels)

    def _read_padding(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pad texts to `max_positions`, with one token that represents all padding tokens of a text, to save time.

        Returns tokens, lengths, and the number of tokens that each token represents, (B, T). Without positions, all
        padding tokens of a text are equal. So n equal keys have the same attention weight as a single key whose score
        is higher by log(n), and the result is the same.
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


def units(labels: tuple[str, ...], target: str = "classes") -> int:
    """Return the number of output units: one for two classes (sigmoid, as in the textbook), otherwise one per label."""
    return 1 if target == "classes" and len(labels) == 2 else len(labels)


def both_logits(outputs: Tensor, labels: tuple[str, ...]) -> Tensor:
    """Convert output units (B, 1) or (B, L) to label logits (B, L).

    For two classes, the logits are (0, z): softmax(0, z) is (1 - sigmoid(z), sigmoid(z)). So one unit is enough, and
    cross-entropy on these logits is the binary cross-entropy of the textbook.
    """
    return F.pad(outputs, (1, 0)) if outputs.shape[1] == 1 and len(labels) == 2 else outputs


def pool(x: Tensor, lengths: Tensor, how: str, counts: Tensor | None = None) -> Tensor:
    """Pool x (B, T, D) over the positions of each text to (B, D), by maximum or mean.

    counts  weight of each position in the mean, (B, T)
    """
    real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # (B, T)
    if how == "max":
        return x.masked_fill(~real[..., None], -math.inf).amax(1)
    weights = real.to(x.dtype) if counts is None else real * counts
    return (x * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)


def _block(c: TextClassifierConfig) -> Block:
    return Block(Attention(c.width, c.heads, c.head_width), FeedForward(c.width, c.feed_forward), norm_eps=c.norm_eps)
