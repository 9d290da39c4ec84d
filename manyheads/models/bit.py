"""BiT (Big Transfer): wide ResNets with group norms, pretrained on large data sets (Kolesnikov 2020).

image -> 7 x 7 convolution, stride 2, 3 x 3 max-pool -> 4 stages of blocks -> group norm, relu -> mean -> linear

block: x + f(x), where f has three convolutions as in a ResNet: 1 x 1 to a quarter of the width, 3 x 3, 1 x 1. A group
norm and a relu come before each convolution, instead of a batch norm after it (pre-activation, He 2016). The first
block of a stage projects x after its first norm.

Every convolution standardizes its weights (Qiao 2019): for each output channel, it subtracts the mean and divides by
the standard deviation. Unlike batch norms, neither norm depends on other images of the batch.

ResNet-152x4 has four times the widths of ResNet-152, in all layers: 936,533,224 parameters with 1,000 classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manyheads.core.config import Layers, Size
from manyheads.errors import UserError
from manyheads.models.resnet import REDUCTION, ConvNet, ConvNetConfig, Convolution, check_stages, stages_of

EPSILON = 1e-8  # added to the variance of the weights of a convolution


@dataclass(frozen=True)
class BitConfig(ConvNetConfig):
    """Sizes of a BiT. The defaults are those of ResNet-50x1.

    depths  number of residual blocks per stage
    widths  output channels of each stage
    groups  number of groups of channels of each norm
    """

    depths: tuple[Layers, ...] = (3, 4, 6, 3)
    widths: tuple[Size, ...] = (256, 512, 1024, 2048)
    stem_width: Size = 64
    groups: Size = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(self.depths, self.widths)
        if self.stem_width % self.groups or any(width % (REDUCTION * self.groups) for width in self.widths):
            raise UserError(
                f"stem_width is {self.stem_width} and widths is {self.widths}: expected multiples of groups, which is"
                f" {self.groups}, and of {REDUCTION} times groups"
            )


class Bit(ConvNet[BitConfig]):
    """BiT image classifier. Images in, label logits out."""

    def __init__(self, config: BitConfig) -> None:
        c, last = config, config.widths[-1]
        # The pooling sees a border of zeros, as in the authors' code.
        stem = nn.Sequential(StandardizedConvolution(c.channels, c.stem_width, 7, 2, 3, bias=False),
                             nn.ZeroPad2d(1), nn.MaxPool2d(3, 2))  # fmt: skip
        stages = stages_of(c.depths, c.widths, c.stem_width, lambda *sizes: PreActivation(c, *sizes))
        super().__init__(c, stem, stages, last, nn.Sequential(nn.GroupNorm(c.groups, last), nn.ReLU()))


class StandardizedConvolution(Convolution):
    """Convolution whose weights have mean 0 and variance 1 for each output channel."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        variance, mean = torch.var_mean(weight, (1, 2, 3), correction=0, keepdim=True)
        return super()._conv_forward(x, (weight - mean) * (variance + EPSILON).rsqrt(), bias)


class PreActivation(nn.Module):
    """Residual block with norms before its convolutions: x (B, channels, Y, X) -> (B, width, Y / stride, X / stride).

    stage, index  indices of the stage and of the block in it, from 0. The first block of a stage projects x; its stride
                  is 2, except in the first stage
    """

    def __init__(self, c: BitConfig, channels: int, width: int, stage: int, index: int) -> None:
        super().__init__()
        inner, stride = width // REDUCTION, 2 if stage and not index else 1
        self.norm1 = nn.GroupNorm(c.groups, channels)
        self.conv1 = StandardizedConvolution(channels, inner, 1, bias=False)
        self.norm2 = nn.GroupNorm(c.groups, inner)
        self.conv2 = StandardizedConvolution(inner, inner, 3, stride, 1, bias=False)
        self.norm3 = nn.GroupNorm(c.groups, inner)
        self.conv3 = StandardizedConvolution(inner, width, 1, bias=False)
        self.shortcut = None if index else StandardizedConvolution(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.norm1(x).relu()
        branch = self.conv2(self.norm2(self.conv1(activated)).relu())
        return self.conv3(self.norm3(branch).relu()) + (x if self.shortcut is None else self.shortcut(activated))
