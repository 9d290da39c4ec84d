"""Self-attention that can express convolution (Cordonnier, Loukas & Jaggi 2020): construction, and trainable model.

A head may attend by position alone. Let d = (d_1, d_2) be the shift from the pixel of the query to the pixel of the
key, encoded as r = (|d|^2, d_1, d_2). Let v = -alpha (1, -2 D_1, -2 D_2) be a vector of the head. The score is then
v r = -alpha |d - D|^2 + constant. So the attention weights are a Gaussian around the shift D, of width
1 / sqrt(2 alpha). For large alpha, the head attends only to the pixel at shift D. A K x K convolution is a sum over
K * K shifts, where each shift has a matrix that multiplies the pixel at this shift. So K * K such heads can compute a
K x K convolution (theorem 1, lemma 2).

The model is for small images:

    pixels -> each 2 x 2 block becomes the channels of one pixel -> linear -> N layers -> mean -> classifier

    layer   x = norm(x + linear(attention(x)));  x = norm(x + feed_forward(x))
    Each head mixes all channels of x. The value matrix of a head is part of the output projection. 9 heads correspond
    to a 3 x 3 convolution.

The table lists the kinds of attention. h is the index of a head, H the number of heads, D the width of the model, and
S x S the size of the image in pixels.

kind         scores of head h at shift d = (d_1, d_2)                 number of parameters of the attention
"quadratic"  v_h r_d, with learned centers and widths                  H x 3
"relative"   u_h row[d_1] + w_h column[d_2], a learned encoding        2 (2 S - 1) D + 2 H D
"content"    (q_h k_h + q_h [row[d_1], column[d_2]]) / sqrt(D)         2 (2 S - 1) D / 2 + 2 H D (D + 1)

The attention weights of the first two kinds do not depend on the image. If they are recorded, they have the shape
(1, H, T, T) for the whole batch, where T is the number of pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.config import Epsilon, LabelConfig, Labels, Layers, Pixels, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.interface import ReadsImages
from manyheads.core.layers import FeedForward, LabelHead, count_patches
from manyheads.core.tap import Grid, Tap
from manyheads.errors import UserError

Kind = Literal["quadratic", "relative", "content"]


@dataclass(frozen=True)
class ConvAttentionConfig(LabelConfig):
    """Sizes and options of the model. The defaults are those of the paper's models for CIFAR-10 (table 1).

    labels      classes in the order of the logits. If empty, the model returns features instead of logits
    image_size  side of the training images. Attention of the kind "quadratic" accepts images of any size, the other
                kinds accept no larger images
    downsample  side of the blocks of pixels that are merged into one pixel with more channels
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
            raise UserError(
                f"width is {self.width}: expected an even number, because half of it encodes rows and half columns"
            )
        count_patches(self.image_size, self.downsample)


def shifts(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """Return the shift from every pixel (first axis) to every pixel (second axis) of an image, (T, T, 2).

    T = rows * columns. The last axis contains the shift down and the shift to the right.
    """
    axes = torch.arange(rows, device=device), torch.arange(columns, device=device)
    at = torch.cartesian_prod(*axes).view(-1, 2)  # coordinates of all pixels, (T, 2)
    return at[None] - at[:, None]


def attention_of(
    weight: Tensor, bias: Tensor | None = None, alpha: float = 46.0, *, dilation: int = 1, groups: int = 1
) -> QuadraticAttention:
    """Return a multi-head attention that computes a given convolution (Cordonnier 2020, theorem 1).

    weight (O, I / groups, Ky, Kx) and bias (O,) are those of a `torch.nn.Conv2d` with stride 1. The attention has Ky *
    Kx heads and the dtype of the weight. It maps (B, Y, X, I) to (B, Y, X, O). Where the whole kernel lies inside the
    image, its output equals the convolution, with a relative error of about exp(-alpha): for alpha 46, zero in float64.

    At the borders, no head can attend to pixels outside the image. The softmax then selects the pixel that is closest
    to the shift, as if the image were padded with copies of its border. For zero padding, pad the image with zeros
    before the call, and crop the output.
    """
    if weight.dim() != 4:
        raise UserError(f"expected a Conv2d weight of shape (O, I / groups, Ky, Kx), found {tuple(weight.shape)}")
    if alpha < 0:
        raise UserError(
            f"alpha is {alpha:g}: expected 0 or more, because a head with a negative alpha attends away from its center"
        )
    outputs, inputs, height, width = weight.shape
    if outputs % groups:
        raise UserError(f"the weight has {outputs} outputs: expected a multiple of {groups} groups")
    with torch.device("meta"):  # Do not initialize the weights, because all of them are set below.
        attention = QuadraticAttention(inputs * groups, height * width, outputs)
    attention = attention.to_empty(device=weight.device).to(weight.dtype)
    group_size = outputs // groups
    # the weight between channels of different groups is zero
    matrices = weight.new_zeros(outputs, height, width, groups, inputs)
    for group in range(groups):
        part = slice(group * group_size, (group + 1) * group_size)
        matrices[part, :, :, group] = weight.detach()[part].permute(0, 2, 3, 1)
    at = torch.cartesian_prod(torch.arange(height), torch.arange(width)).view(-1, 2)
    # left and top padding of torch.nn.Conv2d with padding="same"
    before = torch.tensor([dilation * (height - 1) // 2, dilation * (width - 1) // 2])
    with torch.no_grad():
        attention.centers.copy_(at * dilation - before)
        attention.sharpness.fill_(math.sqrt(2 * alpha))
        attention.output.weight.copy_(matrices.flatten(1))
        attention.output.bias.copy_(torch.zeros(outputs) if bias is None else bias.detach())
    return attention


class PixelAttention(nn.Module):
    """Base class of attention from every pixel of x (B, Y, X, D) to every pixel."""

    def __init__(self, width: int, heads: int, outputs: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.output = nn.Linear(heads * width, width if outputs is None else outputs)
        self.tap = Tap()

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        return (Grid(shape[1], shape[2]),) * 2


class PositionalAttention(PixelAttention):
    """Base class of attention whose weights depend only on positions: x (B, Y, X, D) -> (B, Y, X, O)."""

    def scores(self, rows: int, columns: int) -> Tensor:
        """Return the attention scores (H, T, T) of an image with T = rows * columns pixels."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, columns, width = x.shape
        # All images have the same attention weights. Therefore one matrix product computes all images, as if they were
        # channels of a single image: (1, 1, T, B * D).
        value = x.flatten(1, 2).transpose(0, 1).flatten(1)[None, None]
        mixed = attend(
            value, None, value, scores=self.scores(rows, columns)[None],
            dropout=self.dropout if self.training else 0.0, tap=self.tap,
        )  # (1, H, T, B * D)  # fmt: skip
        mixed = mixed[0].unflatten(-1, (batch, width)).permute(2, 1, 0, 3)  # weighted means by head, (B, T, H, D)
        return self.output(mixed.flatten(2)).unflatten(1, (rows, columns))


class QuadraticAttention(PositionalAttention):
    """Attention whose heads weigh pixels by a Gaussian around a learned shift (section 3.1, equation 9, isotropic).

    centers    learned shift of each head from the query pixel, down and to the right, in pixels, (H, 2)
    sharpness  1 / width of each Gaussian, in 1 / pixels, (H,); alpha is half of its square
    """

    def __init__(self, width: int, heads: int, outputs: int | None = None, dropout: float = 0.0) -> None:
        super().__init__(width, heads, outputs, dropout)
        # The initial shifts of the heads cover about 5 x 5 pixels, as in the authors' code.
        self.centers = nn.Parameter(torch.randn(heads, 2) * 2.0)
        self.sharpness = nn.Parameter(1.0 + torch.randn(heads) * 0.01)

    def scores(self, rows: int, columns: int) -> Tensor:
        alpha = self.sharpness.square() / 2
        # vector v of each head, which determines its Gaussian, (H, 3)
        v = -alpha[:, None] * torch.cat([torch.ones_like(alpha)[:, None], -2 * self.centers], dim=1)
        d = shifts(rows, columns, v.device).to(v.dtype)
        # encoding r of the shift between each pair of pixels, (T, T, 3)
        r = torch.cat([d.square().sum(-1, keepdim=True), d], dim=-1)
        return _dot(v, r)


class RelativeAttention(PositionalAttention):
    """Attention by position only, with learned encodings of the row shift and the column shift (section 4.2).

    size  maximum number of rows, and of columns, of an image
    """

    def __init__(self, width: int, heads: int, size: int, dropout: float = 0.0) -> None:
        super().__init__(width, heads, dropout=dropout)
        self.rows, self.columns = nn.Embedding(2 * size - 1, width), nn.Embedding(2 * size - 1, width)
        self.row_scores, self.column_scores = nn.Linear(width, heads, bias=False), nn.Linear(width, heads, bias=False)

    def scores(self, rows: int, columns: int) -> Tensor:
        # scores by query row and key row, (H, Y, Y)
        down = _dot(self.row_scores.weight, self.rows(_shift_indices(self.rows, rows)))
        # scores by query column and key column, (H, X, X)
        right = _dot(self.column_scores.weight, self.columns(_shift_indices(self.columns, columns)))
        both = down[:, :, None, :, None] + right[:, None, :, None, :]  # scores of all pairs of pixels, (H, Y, X, Y, X)
        return both.flatten(3).flatten(1, 2)


class ContentAttention(PixelAttention):
    """Attention by content, and by the position of a key relative to the query (section 4.3, Ramachandran 2019).

    x (B, Y, X, D) -> (B, Y, X, D); `size` is the maximum number of rows, and of columns.
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
        # The first half of the query attends to row shifts, the second half to column shifts.
        along = query.unflatten(2, (rows, columns)).chunk(2, dim=-1)
        down = torch.einsum("bhyxd,ykd->bhyxk", along[0], self.rows(_shift_indices(self.rows, rows)))
        right = torch.einsum("bhyxd,xkd->bhyxk", along[1], self.columns(_shift_indices(self.columns, columns)))
        # position term of the scores, (B, H, T, T)
        both = (down[..., :, None] + right[..., None, :]).flatten(4).flatten(2, 3)
        value = x.flatten(1, 2)[:, None].expand_as(query)
        mixed = attend(
            query, key, value, bias=both / math.sqrt(width),
            dropout=self.dropout if self.training else 0.0, tap=self.tap,
        )  # (B, H, T, D)  # fmt: skip
        return self.output(mixed.transpose(1, 2).flatten(2)).unflatten(1, (rows, columns))


class Layer(nn.Module):
    """Layer of attention, then a feed-forward network, with norms as in BERT: x (B, Y, X, D) -> (B, Y, X, D)."""

    def __init__(self, c: ConvAttentionConfig) -> None:
        super().__init__()
        size, rate = c.image_size // c.downsample, c.attention_dropout
        self.attention: PixelAttention
        if c.kind == "quadratic":
            self.attention = QuadraticAttention(c.width, c.heads, dropout=rate)
        elif c.kind == "relative":
            self.attention = RelativeAttention(c.width, c.heads, size, rate)
        else:
            self.attention = ContentAttention(c.width, c.heads, size, rate)
        self.linear = nn.Linear(c.width, c.width)
        self.attention_norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.feed_forward = FeedForward(c.width, c.feed_forward, "gelu")
        self.feed_forward_norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.dropout = c.dropout

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + dropout(self.linear(self.attention(x)), self.dropout, self.training))
        return self.feed_forward_norm(x + dropout(self.feed_forward(x), self.dropout, self.training))


class ConvAttention(ReadsImages[ConvAttentionConfig]):
    """Image classifier of attention layers instead of convolutions. Images in, label logits out."""

    def __init__(self, config: ConvAttentionConfig) -> None:
        super().__init__(config, channels=config.channels, image_size=config.image_size, labels=config.labels)
        c = config
        self.pixels = nn.Linear(c.channels * c.downsample**2, c.width)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.layers)])
        self.classifier = LabelHead(c.width, len(c.labels)) if c.labels else None

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, L) for normalized images (B, C, Y, X), or features (B, D) if the model has no labels."""
        features = self.features(images)
        return features if self.classifier is None else self.classifier(features)

    def features(self, images: Tensor) -> Tensor:
        """Return the output of the last layer, averaged over the pixels, (B, D), for images (B, C, Y, X)."""
        self.grid(images)
        # Merging a block of pixels into the channels of one pixel loses no information.
        x = F.pixel_unshuffle(images, self.config.downsample).permute(0, 2, 3, 1)
        x = self.pixels(x)  # merged pixels, (B, Y, X, D)
        for layer in self.layers:
            x = layer(x)
        return x.mean((1, 2))

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Return the number of rows and columns of tokens for images (B, C, Y, X).

        Raises UserError for unsupported images.
        """
        c = self.config
        channels, *sizes = images.shape[1:]
        if channels != c.channels:
            raise UserError(f"the images have {channels} channels, but the model expects {c.channels}")
        for size in sizes:
            count_patches(size, c.downsample)
            if c.kind != "quadratic" and size > c.image_size:
                raise UserError(
                    f"the images are {sizes[0]} x {sizes[1]}, but the model accepts at most {c.image_size} x"
                    f" {c.image_size}: resize them"
                )
        return sizes[0] // c.downsample, sizes[1] // c.downsample


def _dot(vectors: Tensor, encodings: Tensor) -> Tensor:
    """Return the dot products (H, Q, K) of vectors (H, P) and position encodings (Q, K, P).

    No matrix product is used, because autocast would round its factors.
    """
    return (vectors[:, None, None] * encodings).sum(-1)


def _shift_indices(table: nn.Embedding, count: int) -> Tensor:
    """Return the row in a table of shift encodings for each pair of positions, (count, count)."""
    at = torch.arange(count, device=table.weight.device)
    return at[None] - at[:, None] + table.num_embeddings // 2
