"""ResNeSt: a ResNet whose blocks weigh groups of feature maps for each channel (Zhang et al. 2020).

x -> 3 x 3 convolution in R groups -> norm, ReLU -> R splits, one from each group
  -> sum of the splits -> mean over the image -> linear -> norm, ReLU -> linear
  -> softmax over the splits, for each channel -> sum of the splits with these weights

In every residual block, this layer replaces one convolution: the 3 x 3 convolution of a bottleneck block, or the first
convolution of a basic block, which the paper does not use. The weights are those of a selective kernel, whose branches
have kernels of different sizes (models/selective_kernel.py). The stem "7x7" consists of three 3 x 3 convolutions. In a
block that halves the resolution, average pooling does so: 3 x 3 after the split attention, and 2 x 2 before the
projection of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Range
from manyheads.errors import UserError
from manyheads.models.resnet import Convolution, NormalizedLayer, Residual, ResNet, ResNetConfig
from manyheads.models.selective_kernel import BranchAttention
from manyheads.models.squeeze_excitation import inner_width

REDUCTION, MIN_WIDTH = 4, 32  # reduction of the layers that compute the weights, and minimum of their hidden units


@dataclass(frozen=True)
class ResNeStConfig(ResNetConfig):
    """Sizes of a ResNet, and the number of splits (`radix`) in each block."""

    radix: Annotated[int, Range(2, 64)] = 2


class ResNeSt(ResNet[ResNeStConfig]):
    """ResNet with split attention. Images in, label logits out."""

    def __init__(self, config: ResNeStConfig) -> None:
        c = config
        super().__init__(c, stem=deep_stem(c.channels, c.stem_width) if c.stem == "7x7" else None)
        for block in self.modules():
            if isinstance(block, Residual) and block.shortcut is not None:
                old = block.shortcut.mixer
                assert isinstance(old, Convolution)
                block.shortcut.mixer = nn.Sequential(
                    nn.AvgPool2d(old.stride[0], ceil_mode=True, count_include_pad=False),
                    Convolution(old.in_channels, old.out_channels, 1, bias=False),
                )
        self.replace_inner_layers(lambda channels, width, stride: SplitAttention(channels, width, stride, c.radix))


class SplitAttention(nn.Module):
    """Convolution with split attention: x (B, channels, Y, X) -> (B, width, Y / stride, X / stride)."""

    def __init__(self, channels: int, width: int, stride: int = 1, radix: int = 2) -> None:
        super().__init__()
        if channels % radix:
            raise UserError(
                f"split attention has {channels} input channels: expected a multiple of radix, {radix} (stem_width, one"
                " of the widths, or a quarter of one in bottlenecks)"
            )
        self.radix, self.stride = radix, stride
        splits = radix * width
        self.convolution = NormalizedLayer(Convolution(channels, splits, 3, 1, 1, groups=radix, bias=False), splits)
        self.gate = BranchAttention(width, radix, inner_width(splits, REDUCTION, MIN_WIDTH), bias=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.gate(*self.convolution(x).relu().chunk(self.radix, dim=1))
        return F.avg_pool2d(y, 3, self.stride, 1) if self.stride > 1 else y


def deep_stem(channels: int, width: int) -> nn.Sequential:
    """Return a stem of three convolutions: images (B, C, Y, X) -> (B, width, Y / 4, X / 4)."""
    inner = max(1, width // 2)
    layers = [
        NormalizedLayer(Convolution(inputs, outputs, 3, stride, 1, bias=False), outputs)
        for inputs, outputs, stride in ((channels, inner, 2), (inner, inner, 1), (inner, width, 1))
    ]
    return nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())), nn.MaxPool2d(3, 2, 1))
