"""Attention as convolution: the theorem as code, and the model that learns it (Cordonnier, Loukas & Jaggi 2020).

A head may look by position alone. Let r = (|d|^2, d_1, d_2) encode the shift d from the query's pixel to the key's, and
let the head have v = -alpha (1, -2 D_1, -2 D_2). Its scores v r = -alpha |d - D|^2 + constant make its map a Gaussian
around the shift D, of width 1 / sqrt(2 alpha); when alpha grows the head sees the pixel at shift D and nothing else. A
convolution K x K is a sum over K * K shifts of a matrix times the pixel there: K * K such heads (theorem 1, lemma 2).

The model, for small images: pixels -> 2 x 2 of them as the channels of one -> linear -> N layers -> mean -> classifier

    layer   x = norm(x + linear(attention(x)));  x = norm(x + feed_forward(x))
    each head mixes the whole of x (its own value matrix is part of the output's): 9 heads, as of a 3 x 3 convolution

kind         scores of head h, shift d = (d_1, d_2), width D         its own parameters
"quadratic"  v_h r_d: centres and widths are learned                  H x 3
"relative"   u_h row[d_1] + w_h column[d_2]: an encoding learned      2 (2 S - 1) D + 2 H D, of S x S pixels
"content"    (q_h k_h + q_h [row[d_1], column[d_2]]) / sqrt(D)        2 (2 S - 1) D / 2 + 2 H D (D + 1)

Maps of the first two do not depend on the image: recorded, they are (1, H, T, T), one for the whole batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.config import Config, Epsilon, Labels, Layers, Pixels, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.layers import FeedForward, whole_patches
from manyheads.core.tap import Grid, Tap
from manyheads.errors import UserError

Kind = Literal["quadratic", "relative", "content"]


@dataclass(frozen=True)
class ConvAttentionConfig(Config):
    """Sizes and choices; the defaults are those of the paper's models for CIFAR-10 (table 1).

    labels      what is told apart, by the index of the logit; none: the model gives its features
    image_size  of training. "quadratic" takes images of any size, the others none larger
    downsample  so many pixels, in both directions, become the channels of one
    """

    kind: Kind = "quadratic"
    labels: Labels = tuple(map(str, range(1000)))
    image_size: Pixels = 32
    channels: Size = 3
    downsample: Pixels = 2
    width: Size = 400
    layers: Layers = 6
    heads: Size = 9
    feed_forward: Size = 512
    norm_eps: Epsilon = 1e-12
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "content" and self.width % 2:
            raise UserError(f"width is {self.width}: half of it encodes rows, half columns; make it even")
        whole_patches(self.image_size, self.downsample)


def shifts(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """From every pixel (first axis) to every pixel (second): (T, T, 2) down and to the right, T = rows * columns."""
    axes = torch.arange(rows, device=device), torch.arange(columns, device=device)
    at = torch.cartesian_prod(*axes).view(-1, 2)  # (T, 2)
    return at[None] - at[:, None]


def attention_of(
    weight: Tensor, bias: Tensor | None = None, alpha: float = 46.0, *, dilation: int = 1, groups: int = 1
) -> QuadraticAttention:
    """A multi-head attention that computes a convolution: the paper's theorem 1, by its construction.

    weight (O, I / groups, Ky, Kx) and bias (O,) are those of a `torch.nn.Conv2d` (its stride would only choose among
    the outputs); the attention takes (B, Y, X, I) and gives (B, Y, X, O), in the weight's number format, by Ky * Kx
    heads. Where the whole kernel lies within the image its output is the convolution's, but for about exp(-alpha) of
    the largest: at 46, nothing in float64.

    At the borders no head can look outside. The softmax gives its weight to the pixels that are there, to the one next
    to where the head would look: as if the image were padded with copies of its border, not with zeros. For zeros,
    give it the image with zeros around, and cut them off the output.
    """
    if weight.dim() != 4:
        raise UserError(f"the weight has shape {tuple(weight.shape)}: expected (O, I / groups, Ky, Kx), of a Conv2d")
    if alpha < 0:
        raise UserError(f"alpha is {alpha:g}: expected 0 or more, or heads would look away from their centres")
    outputs, inputs, height, width = weight.shape
    if outputs % groups:
        raise UserError(f"the weight has {outputs} outputs, which {groups} groups do not divide")
    with torch.device("meta"):  # nothing is drawn that would be overwritten
        attention = QuadraticAttention(inputs * groups, height * width, outputs)
    attention = attention.to_empty(device=weight.device).to(weight.dtype)
    group_size = outputs // groups
    matrices = weight.new_zeros(outputs, height, width, groups, inputs)  # zeros between groups
    for group in range(groups):
        part = slice(group * group_size, (group + 1) * group_size)
        matrices[part, :, :, group] = weight.detach()[part].permute(0, 2, 3, 1)
    at = torch.cartesian_prod(torch.arange(height), torch.arange(width)).view(-1, 2)
    before = torch.tensor([dilation * (height - 1) // 2, dilation * (width - 1) // 2])  # of PyTorch's padding="same"
    with torch.no_grad():
        attention.centres.copy_(at * dilation - before)
        attention.sharpness.fill_(math.sqrt(2 * alpha))
        attention.output.weight.copy_(matrices.flatten(1))
        attention.output.bias.copy_(torch.zeros(outputs) if bias is None else bias.detach())
    return attention


class PixelAttention(nn.Module):
    """Every pixel of x (B, Y, X, D) looks at every pixel."""

    def __init__(self, width: int, heads: int, outputs: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.output = nn.Linear(heads * width, width if outputs is None else outputs)
        self.tap = Tap()

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        return (Grid(shape[1], shape[2]),) * 2


class PositionalAttention(PixelAttention):
    """Heads that look by position alone: x (B, Y, X, D) -> (B, Y, X, O)."""

    def scores(self, rows: int, columns: int) -> Tensor:
        """(H, T, T) for an image of T = rows * columns pixels."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, columns, width = x.shape
        # one map for all images, so that they are mixed together, as if they were channels of one: (1, 1, T, B * D)
        value = x.flatten(1, 2).transpose(0, 1).flatten(1)[None, None]
        mixed = attend(
            value, None, value, scores=self.scores(rows, columns)[None],
            dropout=self.dropout if self.training else 0.0, tap=self.tap,
        )  # (1, H, T, B * D)  # fmt: skip
        mixed = mixed[0].unflatten(-1, (batch, width)).permute(2, 1, 0, 3)  # (B, T, H, D)
        return self.output(mixed.flatten(2)).unflatten(1, (rows, columns))


class QuadraticAttention(PositionalAttention):
    """Heads that see a Gaussian around a shift of their own (section 3.1, equation 9, isotropic).

    centres    (H, 2) the shifts, down and to the right, in pixels
    sharpness  (H,) 1 / width, in 1 / pixels: alpha is half of its square
    """

    def __init__(self, width: int, heads: int, outputs: int | None = None, dropout: float = 0.0) -> None:
        super().__init__(width, heads, outputs, dropout)
        self.centres = nn.Parameter(torch.randn(heads, 2) * 2.0)  # spread over 5 x 5 pixels (authors' code)
        self.sharpness = nn.Parameter(1.0 + torch.randn(heads) * 0.01)

    def scores(self, rows: int, columns: int) -> Tensor:
        alpha = self.sharpness.square() / 2
        v = -alpha[:, None] * torch.cat([torch.ones_like(alpha)[:, None], -2 * self.centres], dim=1)  # (H, 3)
        d = shifts(rows, columns, v.device).to(v.dtype)
        r = torch.cat([d.square().sum(-1, keepdim=True), d], dim=-1)  # (T, T, 3)
        return _dot(v, r)


class RelativeAttention(PositionalAttention):
    """Heads that look by a learned encoding of the row's shift and one of the column's (section 4.2).

    size  the largest number of rows, and of columns
    """

    def __init__(self, width: int, heads: int, size: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout=dropout)
        self.rows, self.columns = nn.Embedding(2 * size - 1, width), nn.Embedding(2 * size - 1, width)
        self.row_scores, self.column_scores = nn.Linear(width, heads, bias=False), nn.Linear(width, heads, bias=False)

    def scores(self, rows: int, columns: int) -> Tensor:
        down = _dot(self.row_scores.weight, self.rows(_between(self.rows, rows)))  # (H, Y, Y)
        right = _dot(self.column_scores.weight, self.columns(_between(self.columns, columns)))  # (H, X, X)
        both = down[:, :, None, :, None] + right[:, None, :, None, :]  # (H, Y, X, Y, X)
        return both.flatten(3).flatten(1, 2)


class ContentAttention(PixelAttention):
    """Heads that look by content, and by where it is as their query asks (section 4.3, Ramachandran 2019).

    x (B, Y, X, D) -> (B, Y, X, D); `size` is the largest number of rows, and of columns.
    """

    def __init__(self, width: int, heads: int, size: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout=dropout)
        self.rows, self.columns = nn.Embedding(2 * size - 1, width // 2), nn.Embedding(2 * size - 1, width // 2)
        self.query, self.key = nn.Linear(width, heads * width), nn.Linear(width, heads * width)

    def forward(self, x: Tensor) -> Tensor:
        _, rows, columns, width = x.shape
        query, key = (
            projection(x).flatten(1, 2).unflatten(-1, (self.heads, width)).transpose(1, 2)
            for projection in (self.query, self.key)
        )  # (B, H, T, D)
        along = query.unflatten(2, (rows, columns)).chunk(2, dim=-1)  # one half asks for rows, one for columns
        down = torch.einsum("bhyxd,ykd->bhyxk", along[0], self.rows(_between(self.rows, rows)))
        right = torch.einsum("bhyxd,xkd->bhyxk", along[1], self.columns(_between(self.columns, columns)))
        both = (down[..., :, None] + right[..., None, :]).flatten(4).flatten(2, 3)  # (B, H, T, T)
        value = x.flatten(1, 2)[:, None].expand_as(query)
        mixed = attend(
            query, key, value, bias=both / math.sqrt(width),
            dropout=self.dropout if self.training else 0.0, tap=self.tap,
        )  # (B, H, T, D)  # fmt: skip
        return self.output(mixed.transpose(1, 2).flatten(2)).unflatten(1, (rows, columns))


class Layer(nn.Module):
    """Attention, then a feed-forward network, as of BERT: x (B, Y, X, D) -> (B, Y, X, D)."""

    def __init__(self, c: ConvAttentionConfig) -> None:
        super().__init__()
        size, share = c.image_size // c.downsample, c.attention_dropout
        self.attention: PixelAttention
        if c.kind == "quadratic":
            self.attention = QuadraticAttention(c.width, c.heads, dropout=share)
        elif c.kind == "relative":
            self.attention = RelativeAttention(c.width, c.heads, size, share)
        else:
            self.attention = ContentAttention(c.width, c.heads, size, share)
        self.linear = nn.Linear(c.width, c.width)
        self.attention_norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.feed_forward = FeedForward(c.width, c.feed_forward, "gelu")
        self.feed_forward_norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.dropout = c.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + dropout(self.linear(self.attention(x)), self.dropout, self.training))
        return self.feed_forward_norm(x + dropout(self.feed_forward(x), self.dropout, self.training))


class ConvAttention(nn.Module):
    """Images in, logits over the labels out."""

    def __init__(self, config: ConvAttentionConfig) -> None:
        super().__init__()
        self.config = c = config
        self.pixels = nn.Linear(c.channels * c.downsample**2, c.width)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.layers)])
        self.classifier = nn.Linear(c.width, len(c.labels)) if c.labels else None

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X), normalised -> logits (B, L), or the features (B, D) of a model without labels."""
        features = self.features(images)
        return features if self.classifier is None else self.classifier(features)

    def features(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X) -> the mean over the pixels of the last layer (B, D)."""
        self.grid(images)
        x = F.pixel_unshuffle(images, self.config.downsample).permute(0, 2, 3, 1)  # nothing is lost: it can be undone
        x = self.pixels(x)  # (B, Y, X, D)
        for layer in self.layers:
            x = layer(x)
        return x.mean((1, 2))

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of the tokens of images (B, C, Y, X). Raises UserError where the model takes none such."""
        c = self.config
        channels, *sizes = images.shape[1:]
        if channels != c.channels:
            raise UserError(f"the images have {channels} channels, the model takes {c.channels}")
        for size in sizes:
            whole_patches(size, c.downsample)
            if c.kind != "quadratic" and size > c.image_size:
                raise UserError(
                    f"the images are {sizes[0]} x {sizes[1]}, the model's encodings reach {c.image_size} x"
                    f" {c.image_size}: make them smaller"
                )
        return sizes[0] // c.downsample, sizes[1] // c.downsample


def _dot(vectors: Tensor, encodings: Tensor) -> Tensor:
    """Of vectors (H, P) with encodings (Q, K, P): (H, Q, K). No matrix product, whose factors autocast would round."""
    return (vectors[:, None, None] * encodings).sum(-1)


def _between(table: nn.Embedding, count: int) -> Tensor:
    """Where a table of encodings has the shift from each of `count` places (first axis) to each: (count, count)."""
    at = torch.arange(count, device=table.weight.device)
    return at[None] - at[:, None] + table.num_embeddings // 2
