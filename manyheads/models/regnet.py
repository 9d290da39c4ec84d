"""RegNet: residual networks whose widths and depths follow a line that a search has found (Radosavovic 2020).

image -> 3 x 3 convolution, stride 2 -> 4 stages of blocks, each stage at half the resolution -> mean -> linear

block of RegNetY: relu(x + f(x)) with f = 1 x 1, relu, 3 x 3 in groups of `group_width` channels, relu,
squeeze-and-excitation, 1 x 1. Every convolution has a batch norm. Unlike in a ResNet, the block has no bottleneck, and
the hidden units of the squeeze-and-excitation are a quarter of the block's input channels.

RegNetY-16GF is the teacher of DeiT (Touvron 2021, table 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from manyheads.core.config import Layers, Size
from manyheads.errors import UserError
from manyheads.models.resnet import (
    ConvNet,
    ConvNetConfig,
    Convolution,
    NormalizedLayer,
    check_stages,
    shortcut,
    stages_of,
)
from manyheads.models.squeeze_excitation import SqueezeExcitation


@dataclass(frozen=True)
class RegNetConfig(ConvNetConfig):
    """Sizes of a RegNetY. The defaults are those of RegNetY-16GF.

    depths       number of residual blocks per stage
    widths       channels of each stage
    group_width  number of channels of a group of the 3 x 3 convolutions; a stage with fewer channels has one group
    """

    depths: tuple[Layers, ...] = (2, 4, 11, 1)
    widths: tuple[Size, ...] = (224, 448, 1232, 3024)
    group_width: Size = 112
    stem_width: Size = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stages(self.depths, self.widths)
        if any(width % self.groups_of(width) for width in self.widths):
            raise UserError(
                f"widths is {self.widths}: expected numbers of channels that width // {self.group_width} groups divide"
            )

    def groups_of(self, width: int) -> int:
        return max(1, width // self.group_width)


class RegNet(ConvNet[RegNetConfig]):
    """RegNetY image classifier. Images in, label logits out."""

    def __init__(self, config: RegNetConfig) -> None:
        c = config
        stem = NormalizedLayer(Convolution(c.channels, c.stem_width, 3, 2, 1, bias=False), c.stem_width)
        stages = stages_of(c.depths, c.widths, c.stem_width, lambda *sizes: RegNetBlock(c, *sizes))
        super().__init__(c, nn.Sequential(stem, nn.ReLU()), stages, c.widths[-1])


class RegNetBlock(nn.Module):
    """Residual block with a grouped convolution: x (B, channels, Y, X) -> (B, width, Y / stride, X / stride).

    The stride is 2 in the first block of a stage, whose `index` is 0.
    """

    def __init__(self, c: RegNetConfig, channels: int, width: int, stage: int, index: int) -> None:
        super().__init__()
        stride, groups = 1 if index else 2, c.groups_of(width)
        self.conv1 = NormalizedLayer(Convolution(channels, width, 1, bias=False), width)
        self.conv2 = NormalizedLayer(Convolution(width, width, 3, stride, 1, groups=groups, bias=False), width)
        self.squeeze = SqueezeExcitation(width, inner=max(1, round(channels / 4)))
        self.conv3 = NormalizedLayer(Convolution(width, width, 1, bias=False), width)
        self.shortcut = shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.conv2(self.conv1(x).relu()).relu()
        branch = self.conv3(self.squeeze(branch))
        return (branch + (x if self.shortcut is None else self.shortcut(x))).relu()
