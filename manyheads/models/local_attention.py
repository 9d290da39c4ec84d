"""Stand-alone self-attention: a ResNet with local attention instead of convolutions (Ramachandran et al. 2019).

Attention layer. The output at position i is a sum over all positions j of the window x window positions around i:

    y_i = sum_j softmax_j(q_i k_j + q_i r_(j - i)) v_j

q, k and v are queries, keys and values of 8 heads. r_(a, b) = [row embedding of a, column embedding of b] encodes the
shift from i to j; each embedding has half of the head's width. If a layer halves the resolution, 2 x 2 average pooling
follows.

Stem. Every pixel attends to its block of 4 x 4 pixels. The values are v_j = (sum_m p_m(j) V_m) x_j: a mixture of value
matrices V_m, whose weights p_m depend on the position of j in the block. A norm and 4 x 4 max-pooling follow, "aligned
with the attention's window" (section 3.2).

Network. The attention layers replace the 3 x 3 convolutions of a ResNet, in some or all stages. The attention stem is
optional.

Positions outside the image are excluded from the softmax. So a window that covers the image is global attention. The
size of the window affects the number of parameters only through the embeddings.

Computation. `query_block` x `query_block` neighboring queries share the keys around them, and each query attends to
its window. The result does not depend on the block size. Size 1 computes no unnecessary score (the FLOPs that the paper
reports), but copies every key window^2 times. Recorded attention maps have the shape (B, H, blocks, queries of a block,
keys around the block).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.config import Range, Size
from manyheads.core.masks import Mask
from manyheads.core.tap import Grid, Tap
from manyheads.errors import UserError
from manyheads.models.resnet import ResNet, ResNetConfig, Stages, convolution

Window = Annotated[int, Range(1, 1000)]

# Maximum number of attention weights of a layer, over all heads, in attention maps over the whole image. Local maps are
# converted to such maps only up to this size.
MAX_WEIGHTS = 2**28


@dataclass(frozen=True)
class LocalAttentionConfig(ResNetConfig):
    """Sizes of a ResNet, and the stages that use attention. By default, all stages and the stem use attention.

    attends      numbers of the stages whose 3 x 3 convolutions are replaced by attention. The first stage is 1; numbers
                 above the number of stages have no effect
    front        type of the stem: attention, or the ResNet's convolution that `stem` names
    window       number of neighbors that a position attends to along each axis, an odd number
    stem_window  side of the blocks of pixels in the stem, and of the pooling after it
    mixtures     number of value matrices of the stem
    query_block  number of neighboring queries along each axis that share keys; affects only the speed
    """

    attends: Stages = (1, 2, 3, 4)
    front: Literal["attention", "convolution"] = "attention"
    heads: Size = 8
    window: Window = 7
    stem_window: Window = 4
    mixtures: Size = 4
    query_block: Window = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.attends, default=0) > len(self.depths):
            raise UserError(f"attends is {self.attends}: expected stages from 1 to {len(self.depths)}")


class LocalAttentionNet(ResNet[LocalAttentionConfig]):
    """ResNet with local attention instead of convolutions. Images in, label logits out."""

    def __init__(self, config: LocalAttentionConfig) -> None:
        c = config

        def mixing(channels: int, width: int, stride: int, stage: int) -> nn.Module:
            if stage not in c.attends:
                return convolution(channels, width, stride, stage)
            return LocalAttention(channels, width, c.heads, c.window, stride=stride, query_block=c.query_block)

        stem = None
        if c.front == "attention":
            stem = AttentionStem(c.channels, c.stem_width, c.heads, c.stem_window, c.mixtures)
        super().__init__(c, mixing, stem)


class LocalAttention(nn.Module):
    """Local self-attention layer: x (B, channels, Y, X) -> (B, width, Y / stride, X / stride), rounded up."""

    def __init__(
        self, channels: int, width: int, heads: int = 8, window: int = 7, *, stride: int = 1, query_block: int = 4
    ) -> None:
        super().__init__()
        _check_heads(width, heads)
        if window % 2 == 0:
            raise UserError(f"window is {window}: expected an odd number, so that it reaches equally far to all sides")
        self.heads, self.reach, self.stride, self.query_block = heads, window // 2, stride, query_block
        self.query = nn.Linear(channels, width, bias=False)  # these linear layers are equivalent to 1 x 1 convolutions
        self.key = nn.Linear(channels, width, bias=False)
        self.value = nn.Linear(channels, width, bias=False)
        self.relative = RelativePositions(heads, width // heads, self.reach)
        self.tap = Tap()
        _initialize(self.query, self.key, self.value, heads)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        block = min(self.query_block, max(height, width))
        pixels = x.permute(0, 2, 3, 1)  # pixels with channels last, (B, Y, X, C)
        query = blocks(self.query(pixels), self.heads, block)  # queries, (B, H, N, block^2, Dh)
        around = partial(blocks, heads=self.heads, block=block, halo=self.reach)
        mixed = attend(
            query,
            around(self.key(pixels)),  # keys around each block, (B, H, N, (block + 2 reach)^2, Dh)
            around(self.value(pixels)),
            mask=block_mask(height, width, block, (block + 2 * self.reach) ** 2, x.device),
            bias=self.relative(query, near_keys(height, width, block, self.reach, self.reach, x.device)),
            scale=1.0,  # The paper does not scale the scores by 1 / sqrt(Dh).
            tap=self.tap,
        )
        y = join_blocks(mixed, height, width, block)  # image of output features, (B, width, Y, X)
        if self.stride > 1:
            y = F.avg_pool2d(y, self.stride, ceil_mode=True, count_include_pad=False)
        return y

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        return _grids(shape)

    def over_image(self, maps: Tensor, shape: torch.Size) -> Tensor:
        """Return recorded local attention maps as maps over the whole image, (B, H, Y * X, Y * X)."""
        return over_image(maps, shape, min(self.query_block, max(shape[2:])), self.reach)


class AttentionStem(nn.Module):
    """Attention stem of a ResNet: images (B, C, Y, X) -> (B, width, Y / window, X / window), rounded up.

    The value matrix of position j = (a, b) of a block is a mixture of learned matrices. The weights of the mixture are
    p(j) = softmax over the matrices of (row[a] + column[b]) nu_m, where nu_m is a learned vector of matrix m and row
    and column are learned embeddings (Ramachandran 2019, appendix A).
    """

    def __init__(self, channels: int, width: int, heads: int = 8, window: int = 4, mixtures: int = 4) -> None:
        super().__init__()
        _check_heads(width, heads)
        self.heads, self.window = heads, window
        self.query = nn.Linear(channels, width, bias=False)
        self.key = nn.Linear(channels, width, bias=False)
        self.values = nn.Parameter(torch.empty(mixtures, width, channels))
        self.rows = nn.Parameter(torch.randn(window, width))
        self.columns = nn.Parameter(torch.randn(window, width))
        self.mixtures = nn.Parameter(torch.randn(mixtures, width) * width**-0.5)
        self.relative = RelativePositions(heads, width // heads, window - 1)
        self.norm = nn.BatchNorm2d(width)
        self.tap = Tap()
        _initialize(self.query, self.key, self.values, heads)

    def forward(self, images: Tensor) -> Tensor:
        (height, width), window = images.shape[2:], self.window
        pixels = images.permute(0, 2, 3, 1)  # pixels with channels last, (B, Y, X, C)
        query = blocks(self.query(pixels), self.heads, window)  # queries, (B, H, N, window^2, Dh)
        position_vectors = (self.rows[:, None] + self.columns).flatten(0, 1)  # (window^2, width)
        # At each position of a block, the value matrix is a mixture of M learned matrices with these weights,
        # (window^2, M). They are not attention weights.
        mixture_weights = (position_vectors @ self.mixtures.T).softmax(-1)
        matrices = torch.einsum("pm,mdc->pdc", mixture_weights, self.values)
        inputs = blocks(pixels, 1, window)[:, 0]  # pixels by block, (B, N, window^2, C)
        value = torch.einsum("bnpc,pdc->bnpd", inputs, matrices)
        mixed = attend(
            query,
            blocks(self.key(pixels), self.heads, window),
            value.unflatten(-1, (self.heads, -1)).permute(0, 3, 1, 2, 4),  # values, (B, H, N, window^2, Dh)
            mask=block_mask(height, width, window, window**2, images.device),
            bias=self.relative(query, near_keys(height, width, window, 0, window - 1, images.device)),
            scale=1.0,
            tap=self.tap,
        )
        y = self.norm(join_blocks(mixed, height, width, window)).relu()
        return F.max_pool2d(y, window, ceil_mode=True)

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        return _grids(shape)

    def over_image(self, maps: Tensor, shape: torch.Size) -> Tensor:
        """Return recorded local attention maps as maps over the whole image, (B, H, Y * X, Y * X)."""
        return over_image(maps, shape, self.window, 0)


class RelativePositions(nn.Module):
    """Relative position term q r of the attention scores, for keys up to `reach` positions away along both axes."""

    def __init__(self, heads: int, head_width: int, reach: int) -> None:
        super().__init__()
        shape = (heads, 2 * reach + 1, head_width // 2)
        self.reach = reach
        self.rows = nn.Parameter(torch.randn(shape))
        self.columns = nn.Parameter(torch.randn(shape))

    def forward(self, query: Tensor, visible: tuple[Near, Near]) -> Tensor:
        """Return a bias of the attention scores, (B, H, N, block^2, (block + 2 halo)^2).

        It is computed from the queries (B, H, N, block^2, Dh).

        Keys outside the window get minus infinity. A key is in the window if its row and its column are near enough.
        Two masks, for rows and for columns, cost a fraction of one mask for all keys.
        """
        by_axis = []
        for part, table, axis in zip(query.chunk(2, dim=-1), (self.rows, self.columns), visible, strict=True):
            # scores for each shift, (B, H, N, block^2, 2 reach + 1)
            products = torch.einsum("bhnqd,hkd->bhnqk", part, table)
            index = axis.shifts.clamp(-self.reach, self.reach) + self.reach
            scores = products.gather(-1, index.expand(*query.shape[:-2], *index.shape))
            # scores by key row or column, (B, H, N, block^2, block + 2 halo)
            by_axis.append(scores.masked_fill(~axis.near, -math.inf))
        row, column = by_axis
        return (row[..., :, None] + column[..., None, :]).flatten(-2)


def blocks(x: Tensor, heads: int, block: int, halo: int = 0) -> Tensor:
    """Split images x (B, Y, X, C) into N blocks with `halo` pixels around each, (B, H, N, (block + 2 halo)^2, C / H).

    Pixels outside the image are zeros.
    """
    height, width = x.shape[1:3]
    x = F.pad(x, (0, 0, halo, halo - width % -block, halo, halo - height % -block))
    side = block + 2 * halo
    # overlapping squares of pixels, (B, Y / block, X / block, C, side, side)
    x = x.unfold(1, side, block).unfold(2, side, block)
    x = x.unflatten(3, (heads, -1)).permute(0, 3, 1, 2, 5, 6, 4)
    return x.flatten(4, 5).flatten(2, 3)


def join_blocks(x: Tensor, height: int, width: int, block: int) -> Tensor:
    """Join N blocks (B, H, N, block^2, Dh), without pixels around them, to an image (B, H * Dh, Y, X)."""
    x = x.unflatten(3, (block, block)).unflatten(2, (-(-height // block), -(-width // block)))
    # (B, C, Y, X), padded to a multiple of the block size
    x = x.permute(0, 1, 6, 2, 4, 3, 5).flatten(1, 2).flatten(2, 3).flatten(3, 4)
    return x[..., :height, :width]


def over_image(maps: Tensor, shape: torch.Size, block: int, halo: int) -> Tensor:
    """Convert local attention maps to maps over the whole image, (B, H, Y * X, Y * X).

    Keys outside the window have the weight zero. Raises UserError if the result would be too large.

    maps   (B, H, N, block^2, (block + 2 halo)^2) local maps
    shape  (B, C, Y, X) shape of the input of the layer
    """
    height, width = shape[2:]
    positions, heads = height * width, maps.shape[1]
    if heads * positions**2 > MAX_WEIGHTS:
        raise UserError(
            f"the maps of {heads} heads on {height} x {width} positions are too large: select fewer heads, or layers "
            "with a lower resolution"
        )
    indices = torch.arange(1.0, positions + 1, dtype=torch.float64).view(1, height, width, 1)
    # index of the pixel of each query, counted from 1; 0 for queries outside the image, (N, block^2)
    queries = blocks(indices, 1, block)[0, 0].squeeze(-1).long()
    # index of the pixel of each key, counted from 1; 0 for keys outside the image, (N, (block + 2 halo)^2)
    keys = blocks(indices, 1, block, halo)[0, 0].squeeze(-1).long()
    expanded = maps.new_zeros(*maps.shape[:2], positions + 1, positions + 1)
    expanded[:, :, queries[:, :, None], keys[:, None, :]] = maps
    return expanded[:, :, 1:, 1:]


def _grids(shape: torch.Size) -> tuple[Grid, Grid]:
    """Return the image grids of the queries and of the keys for an input of shape (B, C, Y, X). Both are equal."""
    return (Grid(shape[2], shape[3]),) * 2


class Near(NamedTuple):
    """Keys that each query of a block can see along one axis: rows or columns of pixels in and around the block."""

    shifts: Tensor  # distance of each key from each query, (block^2, side)
    near: Tensor  # True if the key is inside the image and at most `reach` away from the query, (N, block^2, side)


@lru_cache(maxsize=64)
def near_keys(height: int, width: int, block: int, halo: int, reach: int, device: torch.device) -> tuple[Near, Near]:
    """Return the rows and the columns of keys that each query of a block can see.

    A query outside the image sees all keys.
    """
    own = torch.arange(block, device=device)
    around = torch.arange(-halo, block + halo, device=device)
    distance = around - own[:, None]  # (block, side)

    def near(length: int) -> Tensor:
        first = torch.arange(0, length, block, device=device)[:, None]  # (blocks, 1)
        exists = (first + around >= 0) & (first + around < length)
        return ((distance.abs() <= reach) & exists[:, None]) | (first + own >= length)[
            ..., None
        ]  # (blocks, block, side)

    # A tensor created in inference mode could not be used in training, and the result is cached for both.
    with torch.inference_mode(False):
        rows, columns = near(height), near(width)
        down, right = len(rows), len(columns)  # number of blocks
        rows = rows.repeat_interleave(block, 1).repeat_interleave(right, 0)  # (N, block^2, side)
        return (
            Near(distance.repeat_interleave(block, 0), rows),
            Near(distance.repeat(block, 1), columns.repeat(down, block, 1)),
        )


@lru_cache(maxsize=64)
def block_mask(height: int, width: int, block: int, keys: int, device: torch.device) -> Mask | None:
    """Return a mask that hides all keys from queries outside the image, or None if the blocks fit into the image."""
    if height % block == width % block == 0:
        return None
    with torch.inference_mode(False):
        exists = blocks(torch.ones(1, height, width, 1, device=device), 1, block)[0, 0] > 0  # (N, block^2, 1)
        return Mask(dense=exists.expand(-1, -1, keys))


def _initialize(query: nn.Linear, key: nn.Linear, value: nn.Linear | nn.Parameter, heads: int) -> None:
    """Initialize the layer so that the attention scores have unit variance without a factor 1 / sqrt(Dh).

    The value projection gets He initialization.
    """
    nn.init.normal_(query.weight, std=(query.in_features * (query.out_features // heads)) ** -0.5)
    nn.init.normal_(key.weight, std=key.in_features**-0.5)
    weight = value.weight if isinstance(value, nn.Linear) else value
    nn.init.normal_(weight, std=(2 / weight.shape[-2]) ** 0.5)


def _check_heads(width: int, heads: int) -> None:
    if width % (2 * heads):
        raise UserError(
            f"width {width} is not divisible by 2 x {heads} heads: each head has equal row and column embeddings (in a"
            " network, this width is stem_width, one of the widths, or a quarter of one in bottlenecks)"
        )
