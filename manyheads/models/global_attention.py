"""GSA-Net: a ResNet with global self-attention instead of convolutions (Shen et al. 2020).

The output of the layer at a pixel is the sum of two parts. q, k and v are queries, keys and values of 8 heads.

content    q (softmax(K)^T V), where the softmax of each channel of the keys covers all pixels. So each channel is one
           attention map. The cost is linear in the number of pixels, because no two pixels are compared.
positions  First, each pixel sums the values of its column, with the weight q r_(y' - y) for row y'. After a batch norm,
           it sums these results along its row, with the weight q r_(x' - x) for column x'. r is a learned vector for
           each shift. The weights have no softmax, and the heads share the vectors.

The layers replace the 3 x 3 convolutions of a ResNet. If a layer halves the resolution, 2 x 2 average pooling follows.
Shifts that are longer than the side of the training images have the weight zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.config import Size
from manyheads.core.tap import Grid, Tap
from manyheads.errors import UserError
from manyheads.models.resnet import ResNet, ResNetConfig

ROWS, COLUMNS = 2, 3  # axes of the rows and of the columns in a tensor of pixels (B, H, Y, X, Dh)


@dataclass(frozen=True)
class GSANetConfig(ResNetConfig):
    """Sizes of a ResNet, and the number of attention heads. `image_size` is the longest side with all positions."""

    heads: Size = 8


class GSANet(ResNet[GSANetConfig]):
    """ResNet with global self-attention instead of 3 x 3 convolutions. Images in, label logits out."""

    def __init__(self, config: GSANetConfig) -> None:
        c = config

        def mixing(channels: int, width: int, stride: int, stage: int) -> nn.Module:
            halvings = 2 * (c.stem == "7x7") + stage - 1 + c.halve_first - (stride > 1)
            return GlobalAttention(channels, width, c.heads, -(-c.image_size // 2**halvings), stride)

        super().__init__(c, mixing)


class GlobalAttention(nn.Module):
    """Global self-attention layer: x (B, channels, Y, X) -> (B, width, Y / stride, X / stride), rounded up.

    size  side of the largest image for which all relative positions are learned
    """

    def __init__(self, channels: int, width: int, heads: int = 8, size: int = 56, stride: int = 1) -> None:
        super().__init__()
        if width % heads:
            raise UserError(
                f"width {width} is not divisible by {heads} heads (in a network, this width is one of the widths, or a"
                " quarter of one in bottlenecks)"
            )
        self.heads, self.stride = heads, stride
        self.query = nn.Linear(channels, width, bias=False)  # these linear layers are equivalent to 1 x 1 convolutions
        self.key = nn.Linear(channels, width, bias=False)
        self.value = nn.Linear(channels, width, bias=False)
        self.content = ContentAttention(heads)
        self.along_columns = AxialAttention(heads, width // heads, size, ROWS)
        self.norm = nn.BatchNorm3d(width // heads)
        self.along_rows = AxialAttention(heads, width // heads, size, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(0, 2, 3, 1)  # pixels with channels last, (B, Y, X, C)
        query, key, value = (
            projection(pixels).unflatten(-1, (self.heads, -1)).permute(0, 3, 1, 2, 4)
            for projection in (self.query, self.key, self.value)
        )  # (B, H, Y, X, Dh)
        of_column = self.along_columns(query, value)
        # The heads share the norm of each channel.
        of_column = self.norm(of_column.permute(0, 4, 1, 2, 3)).permute(0, 2, 3, 4, 1)
        y = self.content(query, key, value) + self.along_rows(query, of_column)
        y = y.permute(0, 1, 4, 2, 3).flatten(1, 2)  # image of output features, (B, width, Y, X)
        return F.avg_pool2d(y, self.stride, ceil_mode=True, count_include_pad=False) if self.stride > 1 else y


class ContentAttention(nn.Module):
    """Attention by content: queries, keys and values (B, H, Y, X, Dh) -> (B, H, Y, X, Dh).

    The recorded maps (B, H, Dh, Y * X) have a row for each channel of the keys.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.tap = Tap()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = key.flatten(2, 3).transpose(2, 3)  # (B, H, Dh, Y * X)
        # mean value of each attention map, (B, H, Dh, Dv)
        context = attend(scores, None, value.flatten(2, 3), scores=scores, tap=self.tap)
        return torch.einsum("bhyxd,bhde->bhyxe", query, context)

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        return Grid(0, 0, tuple(f"channel {channel}" for channel in range(shape[-1]))), Grid(shape[2], shape[3])


class AxialAttention(nn.Module):
    """Attention by relative position along one axis: queries and values (B, H, Y, X, Dh) -> (B, H, Y, X, Dh).

    size  number of positions along the axis for which all shifts are learned
    axis  axis along which pixels attend, ROWS or COLUMNS: pixels of one column differ in their row
    """

    def __init__(self, heads: int, head_width: int, size: int, axis: int) -> None:
        super().__init__()
        self.heads, self.axis = heads, axis
        self.shifts = nn.Parameter(torch.randn(2 * size - 1, head_width))
        self.tap = Tap()

    def forward(self, query: Tensor, value: Tensor) -> Tensor:
        query, value = (
            query.transpose(self.axis, 3),
            value.transpose(self.axis, 3),
        )  # lines of T pixels, (B, H, N, T, Dh)
        scores = torch.einsum("bhntd,tkd->bhntk", query, self._relative(query.shape[3]))
        mixed = attend(query, None, value, scores=scores, normalize="none", tap=self.tap)
        return mixed.transpose(self.axis, 3)

    def _relative(self, count: int) -> Tensor:
        """Return the vector of the shift from each of `count` positions to each of them, (count, count, Dh)."""
        missing = max(0, count - (len(self.shifts) + 1) // 2)
        at = torch.arange(count, device=self.shifts.device)
        return F.pad(self.shifts, (0, 0, missing, missing))[at - at[:, None] + len(self.shifts) // 2 + missing]

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        return (Grid(shape[2], shape[3]),) * 2

    def over_image(self, maps: Tensor, shape: torch.Size) -> Tensor:
        """Return the recorded maps (B, H, N, T, T) as maps over the whole image, (B, H, Y * X, Y * X)."""
        whole = maps.new_zeros(*maps.shape[:2], *shape[2:4], *shape[2:4])
        other = ROWS + COLUMNS - self.axis
        whole.diagonal(dim1=other, dim2=other + 2).copy_(maps.permute(0, 1, 3, 4, 2))
        return whole.flatten(4).flatten(2, 3)
