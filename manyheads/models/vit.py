"""ViT: a Transformer encoder that reads an image as patches (Dosovitskiy 2020); DeiT, which learns from a teacher too
(Touvron 2021).

patches -> linear -> [class token, (distillation token,) patches] + positions -> N x [self-attention, feed-forward]
-> norm -> state of the class token, or the mean of the patches' -> (tanh(linear)) -> linear -> logits

Patches meet only in attention. DeiT's second token has a head of its own, which learns what the teacher says while the
class token's learns the true labels. The prediction adds up the two softmaxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import Config, Epsilon, Heads, Layers, Pixels, Positive, Range, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.layers import FeedForward, PatchEmbedding, whole_patches, xavier_uniform
from manyheads.core.positions import Positions
from manyheads.core.tap import Grid
from manyheads.errors import UserError


@dataclass(frozen=True)
class ViTConfig(Config):
    """Sizes and choices; the defaults are those of ViT-B/16.

    labels            what the head tells apart, by the index of the logit; (): no head. Names may repeat, as ImageNet's
    image_size        pixels of a side; images are square
    pool              what the head reads: the state of a class token, or the mean of the patches' (then there is none)
    distilled         with a distillation token (DeiT)
    fused             what becomes of its head's logits in a prediction: "softmax": the paper's sum of both softmaxes,
                      given as the log of their mean; "logits": the mean of both logits (the authors' code);
                      "none": the token has no head
    representation    width of a layer with tanh below the head, where there is one (at pre-training, section 3.1)
    qkv_bias          whether queries, keys and values have biases
    registers         learned tokens without a position, after the class token, for what the whole image has in common
                      (Darcet 2023)
    layer_scale       first value of a factor for each channel of what a sublayer adds (Touvron 2021b); None: no factors
    dropout           after every linear layer but those of query, key and value, and on the embeddings (section B.1)
    stochastic_depth  probability of leaving out what the last layer adds; it grows linearly from 0 at the first
    init              how matrices begin: "truncated_normal", of deviation 0.02 (DeiT); "xavier": Glorot's uniform ones
                      (ViT's code), which do not leave narrow networks near zero
    position_std      deviation of the positions at first, without which all patches would be alike; patches begin
                      with 1, beside which 0.02 is hardly seen
    """

    labels: tuple[str, ...] = tuple(map(str, range(1000)))
    image_size: Pixels = 224
    patch: Pixels = 16
    channels: Size = 3
    width: Size = 768
    layers: Layers = 12
    heads: Heads = 12
    feed_forward: Size = 3072
    pool: Literal["class", "mean"] = "class"
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
            raise UserError("a distillation token stands beside a class token: expected pool 'class', got 'mean'")
        if self.registers and self.pool != "class":
            raise UserError("registers stand behind a class token: expected pool 'class', got 'mean'")
        whole_patches(self.image_size, self.patch)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        side = whole_patches(self.image_size, self.patch)
        return side, side

    @property
    def tokens(self) -> int:
        """How many tokens the encoder reads: patches, and class and distillation tokens and registers before them."""
        return (self.pool == "class") + self.distilled + self.registers + math.prod(self.grid)


class ViT(nn.Module):
    """Images (B, C, Y, X) in, logits (B, L) out."""

    # DeiT's code decays neither positions nor, vectors as they are, tokens
    undecayed: tuple[str, ...] = ("positions.table",)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.patches = PatchEmbedding(c.patch, c.width, c.channels)
        self.class_token = nn.Parameter(torch.empty(c.width)) if c.pool == "class" else None
        self.distillation_token = nn.Parameter(torch.empty(c.width)) if c.distilled else None
        self.register_tokens = nn.Parameter(torch.empty(c.registers, c.width)) if c.registers else None
        if c.registers:
            self.undecayed = (*self.undecayed, "register_tokens")
        self.positions = Positions(c.tokens - c.registers, c.width, "learned")
        rates = [c.stochastic_depth * layer / max(c.layers - 1, 1) for layer in range(c.layers)]
        self.encoder = Stack([_block(c, rate) for rate in rates], nn.LayerNorm(c.width, eps=c.norm_eps))
        self.representation = None if c.representation is None else nn.Linear(c.width, c.representation)
        self.head = nn.Linear(c.representation or c.width, len(c.labels)) if c.labels else None
        second = bool(c.labels) and c.distilled and c.fused != "none"
        self.distillation_head = nn.Linear(c.width, len(c.labels)) if second else None
        self._initialize()

    def _initialize(self) -> None:
        """Normals are cut at two deviations (Touvron 2021, section 6), biases begin at zero."""
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
        """images (B, C, Y, X), normalised -> logits (B, L), or features where there is no head.

        With a distillation head, while training: the pair (class logits, distillation logits).
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
        """The prediction of both heads, (B, L) each -> (B, L) (Touvron 2021, section 4)."""
        if self.config.fused == "logits":
            return (by_class + by_distillation) / 2
        return torch.logaddexp(by_class.log_softmax(-1), by_distillation.log_softmax(-1)) - math.log(2)

    def features(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X) -> what the (class) head reads, (B, D)."""
        return self.pool(self.encode(images))

    def pool(self, states: Tensor) -> Tensor:
        """Normed states (B, T, D) -> (B, D), or as wide as the representation layer."""
        pooled = states.mean(1) if self.class_token is None else states[:, 0]
        return pooled if self.representation is None else torch.tanh(self.representation(pooled))

    def encode(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X) -> states after the final norm (B, T, D): of the tokens, then of the patches by rows."""
        return self.encoder(self.embed(images))

    def states(self, images: Tensor) -> list[Tensor]:
        """The embeddings and what every layer gives, before the final norm, each (B, T, D)."""
        return self.encoder.states(self.embed(images))

    def embed(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X) -> (B, T, D). Raises UserError for images of another size than the model's."""
        size = self.config.image_size
        if images.shape[-2:] != (size, size):
            rows, columns = images.shape[-2:]
            raise UserError(
                f"the images are {rows} x {columns} pixels, the model takes {size} x {size}: resize the images,"
                " or start a training with image_size"
            )
        x = self.patches(images)
        tokens = [t.expand(len(x), 1, -1) for t in (self.class_token, self.distillation_token) if t is not None]
        x = self.positions(torch.cat([*tokens, x], 1))
        if self.register_tokens is not None:
            registers = self.register_tokens.expand(len(x), -1, -1)
            x = torch.cat([x[:, : len(tokens)], registers, x[:, len(tokens) :]], 1)
        return dropout(x, self.config.dropout, self.training)

    def grids(self) -> tuple[Grid, Grid]:
        """What queries and keys of all its layers are."""
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
