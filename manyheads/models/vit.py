"""ViT (Dosovitskiy 2020) and DeiT (Touvron 2021): Transformer encoders whose tokens are patches of an image.

patches -> linear -> [class token, (distillation token,) patches] + positions -> N x [self-attention, feed-forward]
-> norm -> state of the class token, or mean of the patch states -> (tanh(linear)) -> linear -> logits

Later models of the same kind differ in four settings: `embedding_norm` and `projection` (the image encoder of CLIP,
Radford 2021), `pool` (DINOv2, Oquab 2023), and `norm_after_pool` (masked autoencoders, He 2022).

Patches interact only in attention. DeiT also learns from a teacher model. Its distillation token has a separate head,
which learns the predictions of the teacher, while the head of the class token learns the true labels. The prediction is
the sum of the softmaxes of both heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import Epsilon, Heads, LabelConfig, Layers, Pixels, Positive, Range, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.interface import Encodes, ReadsImages
from manyheads.core.layers import FeedForward, LabelHead, PatchEmbedding, count_patches, xavier_uniform
from manyheads.core.positions import PositionTable
from manyheads.core.tap import Grid
from manyheads.errors import UserError


@dataclass(frozen=True)
class ViTConfig(LabelConfig):
    """Sizes and options of a ViT. The defaults are those of ViT-B/16.

    labels            classes in the order of the logits. If empty, the model has no head. Names may repeat, as in
                      ImageNet
    image_size        side of the square images in pixels
    pool              input of the head. "class": the state of the class token; "mean": the mean of the patches, in a
                      model without a class token; "patches": the same mean in a model with a class token;
                      "class_patches": the state of the class token and the mean of the patches, concatenated
    norm_after_pool   if True, the final norm applies to the pooled state, and not to the state of each token
    embedding_norm    if True, a norm precedes the first layer, and the patch projection has no bias
    projection        width of a linear layer without bias on the pooled state, which maps it to the vectors that CLIP
                      compares with those of texts. By default, there is no such layer
    distilled         add a distillation token (DeiT)
    fused             combination of class head and distillation head in a prediction: "softmax": the log of the mean of
                      both softmaxes (the paper's sum); "logits": the mean of both logits (the authors' code); "none":
                      the distillation token has no head
    representation    width of a tanh layer before the head (pretraining, section 3.1). By default, there is no such
                      layer
    qkv_bias          if True, the query, key and value projections have biases
    registers         number of learned tokens without a position, after the class token, for global information
                      (Darcet 2023)
    layer_scale       initial value of learned factors for the channels of each sublayer's output (Touvron 2021b). By
                      default, there are no such factors
    dropout           dropout after every linear layer but query, key and value, and on the embeddings (section B.1)
    stochastic_depth  probability of skipping the last layer; it grows linearly from 0 at the first layer
    init              initialization of matrices: "truncated_normal" with std 0.02 (DeiT); "xavier": Glorot uniform
                      (ViT's code), better for narrow networks, whose matrices would otherwise start near zero
    position_std      initial standard deviation of the position embeddings. Patch embeddings start with a deviation of
                      1, so position embeddings with 0.02 have little effect at first.
    """

    labels: tuple[str, ...] = tuple(map(str, range(1000)))
    image_size: Pixels = 224
    patch: Pixels = 16
    channels: Size = 3
    width: Size = 768
    layers: Layers = 12
    heads: Heads = 12
    feed_forward: Size = 3072
    pool: Literal["class", "mean", "patches", "class_patches"] = "class"
    norm_after_pool: bool = False
    embedding_norm: bool = False
    projection: Size | None = None
    distilled: bool = False
    fused: Literal["softmax", "logits", "none"] = "softmax"
    representation: Size | None = None
    activation: str = "gelu"
    qkv_bias: bool = True
    registers: Annotated[int, Range(0, 1000)] = 0
    layer_scale: Positive | None = None
    norm_eps: Epsilon = 1e-6
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    stochastic_depth: Annotated[float, Range(0, 1, below=True)] = 0.0
    init: Literal["truncated_normal", "xavier"] = "truncated_normal"
    position_std: Positive = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distilled and self.pool != "class":
            raise UserError(f"a distillation token needs a class token: expected pool 'class', found {self.pool!r}")
        if self.registers and self.pool == "mean":
            raise UserError("registers need a class token: expected pool 'class', found 'mean'")
        if self.distilled and self.norm_after_pool:
            raise UserError("a distillation token needs normalized states: expected norm_after_pool false")
        if self.projection and self.representation:
            raise UserError("expected a projection or a representation, found both")
        count_patches(self.image_size, self.patch)

    @property
    def grid(self) -> tuple[int, int]:
        """Return the number of rows and columns of the patch grid."""
        side = count_patches(self.image_size, self.patch)
        return side, side

    @property
    def tokens(self) -> int:
        """Return the number of encoder tokens: class token, distillation token, registers and patches."""
        return self.special_tokens + math.prod(self.grid)

    @property
    def special_tokens(self) -> int:
        """Return the number of tokens before the patches: class token, distillation token and registers."""
        return (self.pool != "mean") + self.distilled + self.registers


class ViT(ReadsImages[ViTConfig], Encodes[ViTConfig]):
    """Vision Transformer. Images (B, C, Y, X) in, label logits (B, L) out."""

    # Names of parameters without weight decay, as in DeiT's code. The class token and similar tokens need not be named,
    # because weight decay never applies to vectors.
    undecayed: tuple[str, ...] = ("positions.table",)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config, channels=config.channels, image_size=config.image_size, labels=config.labels)
        c = config
        self.patches = PatchEmbedding(c.patch, c.width, c.channels, bias=not c.embedding_norm)
        self.embedding_norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.embedding_norm else None
        self.class_token = nn.Parameter(torch.empty(c.width)) if c.pool != "mean" else None
        self.distillation_token = nn.Parameter(torch.empty(c.width)) if c.distilled else None
        self.register_tokens = nn.Parameter(torch.empty(c.registers, c.width)) if c.registers else None
        if c.registers:
            self.undecayed = (*self.undecayed, "register_tokens")
        self.positions = PositionTable(c.tokens - c.registers, c.width, "learned")
        rates = [c.stochastic_depth * layer / max(c.layers - 1, 1) for layer in range(c.layers)]
        pooled = c.width * 2 if c.pool == "class_patches" else c.width
        norm = nn.LayerNorm(pooled if c.norm_after_pool else c.width, eps=c.norm_eps)
        self.encoder = Stack([_block(c, rate) for rate in rates], None if c.norm_after_pool else norm)
        self.pooled_norm = norm if c.norm_after_pool else None
        self.representation = None if c.representation is None else nn.Linear(pooled, c.representation)
        self.projection = None if c.projection is None else nn.Linear(pooled, c.projection, bias=False)
        self.head = LabelHead(c.projection or c.representation or pooled, len(c.labels)) if c.labels else None
        has_second_head = bool(c.labels) and c.distilled and c.fused != "none"
        self.distillation_head = LabelHead(c.width, len(c.labels)) if has_second_head else None
        self._initialize()

    def _initialize(self) -> None:
        """Draw weights from normal distributions truncated at two standard deviations. Biases are zero.

        Source: Touvron 2021, section 6.
        """
        c = self.config
        for parameter, std in (
            (self.class_token, 0.02), (self.distillation_token, 0.02), (self.register_tokens, 0.02),
            (self.positions.table, c.position_std),
        ):  # fmt: skip
            if parameter is not None:
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
        if c.init == "xavier":
            return xavier_uniform(self)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits (B, L) for normalized images (B, C, Y, X), or features if the model has no head.

        With a distillation head in training mode, returns a pair (class logits, distillation logits).
        """
        states = self.encode(images)
        features = self.pool(states)
        if self.head is None:
            return features
        if self.distillation_head is None:
            return self.head(features)
        both = self.head(features), self.distillation_head(states[:, 1])
        return both if self.training else self.fuse(*both)

    def fuse(self, by_class: Tensor, by_distillation: Tensor) -> Tensor:
        """Return the joint prediction (B, L) of class head and distillation head, from the logits (B, L) of each.

        Source: Touvron 2021, section 4.
        """
        if self.config.fused == "logits":
            return (by_class + by_distillation) / 2
        return torch.logaddexp(by_class.log_softmax(-1), by_distillation.log_softmax(-1)) - math.log(2)

    def features(self, images: Tensor) -> Tensor:
        """Return the input of the class head, (B, D), for images (B, C, Y, X)."""
        return self.pool(self.encode(images))

    def pool(self, states: Tensor) -> Tensor:
        """Pool normalized hidden states (B, T, D) to (B, D), or to the width of the representation or projection."""
        parts = [] if self.config.pool in ("mean", "patches") else [states[:, 0]]
        if self.config.pool != "class":
            parts.append(states[:, self.config.special_tokens :].mean(1))
        pooled = torch.cat(parts, -1)
        pooled = pooled if self.pooled_norm is None else self.pooled_norm(pooled)
        if self.projection is not None:
            return self.projection(pooled)
        return pooled if self.representation is None else torch.tanh(self.representation(pooled))

    def encode(self, images: Tensor) -> Tensor:
        """Return the hidden states after the final norm, (B, T, D), for images (B, C, Y, X).

        With `norm_after_pool`, `pool` applies this norm, and the states are those of the last layer.
        The class token and other special tokens come first, then the patches, row by row.
        """
        return self.encoder(self.embed(images))

    @property
    def stack(self) -> Stack:
        return self.encoder

    def all_states(self, images: Tensor) -> list[Tensor]:
        """Return a list of the embeddings and the output of every layer, each (B, T, D), before the final norm."""
        return self.encoder.states(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """Return the embeddings (B, T, D) of images (B, C, Y, X). Raises UserError for a wrong image size."""
        size = self.config.image_size
        if images.shape[-2:] != (size, size):
            rows, columns = images.shape[-2:]
            raise UserError(
                f"the images are {rows} x {columns} pixels, but the model expects {size} x {size}: resize the images,"
                " or train a model with another image_size"
            )
        x = self.patches(images)
        tokens = [t.expand(x.shape[0], 1, -1) for t in (self.class_token, self.distillation_token) if t is not None]
        x = self.positions(torch.cat([*tokens, x], 1))
        if self.register_tokens is not None:
            registers = self.register_tokens.expand(x.shape[0], -1, -1)
            x = torch.cat([x[:, : len(tokens)], registers, x[:, len(tokens) :]], 1)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return dropout(x, self.config.dropout, self.training)

    @property
    def grids(self) -> tuple[Grid, Grid]:
        """Return the image grids of the queries and keys of each attention layer, which are the same in all layers."""
        named = (("[class]", self.class_token), ("[distillation]", self.distillation_token))
        registers = [f"[register {number}]" for number in range(self.config.registers)]
        grid = Grid(*self.config.grid, (*(name for name, token in named if token is not None), *registers))
        return grid, grid


def _block(c: ViTConfig, drop_path: float) -> Block:
    return Block(
        Attention(c.width, c.heads, qkv_bias=c.qkv_bias, dropout=c.attention_dropout),
        FeedForward(c.width, c.feed_forward, c.activation, c.dropout),
        norm="pre", dropout=c.dropout, drop_path=drop_path, scale=c.layer_scale, norm_eps=c.norm_eps,
    )  # fmt: skip
