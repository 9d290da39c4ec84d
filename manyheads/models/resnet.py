"""ResNet: convolutions whose output is added to their input (He, Zhang, Ren & Sun 2015), in the form called v1.5.

image -> stem -> 4 stages of residual blocks, each stage but the first at half the resolution -> mean -> linear

stem                                     a residual block: relu(x + f(x)), every convolution with a batch norm
"7x7"  7 x 7, stride 2, 3 x 3 max-pool   "basic"       f = 3 x 3, relu, 3 x 3
"3x3"  3 x 3, for images of 32 x 32      "bottleneck"  f = 1 x 1 to a quarter of the width, relu, 3 x 3, relu, 1 x 1

Where a block halves the resolution, its first 3 x 3 convolution does (v1.5; in the paper it is the first 1 x 1). Where
f changes the shape, a 1 x 1 convolution takes x to it. The last norm of each branch starts at zero, so that a new
network is a shallow one (Goyal 2017, section 5.1).

The networks with attention between or instead of the convolutions are this one, with `mixing` or blocks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Config, Layers, Pixels, Range, Size
from manyheads.errors import UserError
from manyheads.models.squeeze_excitation import SqueezeExcitation

# what mixes neighbouring positions: (channels, width, stride, number of the stage, from 1) -> (B, width, Y, X)
Mixing = Callable[[int, int, int, int], nn.Module]
REDUCTION = 4  # of a bottleneck
FEW = 16  # channels
Stages = tuple[Annotated[int, Range(1, 100)], ...]  # numbers of some, from 1


@dataclass(frozen=True)
class ResNetConfig(Config):
    """Sizes and choices; the defaults are those of ResNet-50.

    labels         what is told apart, by the index of the logit; none: the model gives its features
    image_size     that the model is meant for; others work, too
    depths         residual blocks of each stage
    widths         channels that each stage gives
    squeeze        reduction of squeeze-and-excitation in every block, 16 in its paper; None: without
    stride_in_1x1  the first 1 x 1 convolution of a bottleneck halves the resolution (the original), not the 3 x 3
    halve_first    the first stage halves the resolution, too
    """

    labels: tuple[str, ...] = tuple(map(str, range(1000)))
    image_size: Pixels = 224
    channels: Size = 3
    block: Literal["basic", "bottleneck"] = "bottleneck"
    depths: tuple[Layers, ...] = (3, 4, 6, 3)
    widths: tuple[Size, ...] = (256, 512, 1024, 2048)
    stem: Literal["7x7", "3x3"] = "7x7"
    stem_width: Size = 64
    squeeze: Size | None = None
    stride_in_1x1: bool = False
    halve_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.depths) != len(self.widths) or not self.depths:
            raise UserError(f"depths {self.depths} and widths {self.widths}: expected one of each for every stage")
        if self.block == "bottleneck" and any(width % REDUCTION for width in self.widths):
            raise UserError(f"widths {self.widths}: a bottleneck's are multiples of {REDUCTION}")
        if self.block == "basic" and self.stride_in_1x1:
            raise UserError("stride_in_1x1 has no effect in a basic block: leave it out, or set block=bottleneck")


class ResNet(nn.Module):
    """Images in, logits over the labels out.

    mixing  makes what mixes neighbours in the blocks; a 3 x 3 convolution unless given.
    stem    stands before the stages; the configuration's unless given.
    """

    def __init__(self, config: ResNetConfig, mixing: Mixing | None = None, stem: nn.Module | None = None) -> None:
        super().__init__()
        self.config = c = config
        self.stem = stem or Stem(c.channels, c.stem_width, small=c.stem == "3x3")
        self.stages = nn.ModuleList()
        channels = c.stem_width
        for number, (depth, width) in enumerate(zip(c.depths, c.widths, strict=True), 1):
            strides = [2 if number > 1 or c.halve_first else 1] + [1] * (depth - 1)
            blocks = []
            for stride in strides:
                blocks.append(Residual(c, channels, width, stride, number, mixing or convolution))
                channels = width
            self.stages.append(Stage(blocks))
        self.classifier = nn.Linear(channels, len(c.labels)) if c.labels else None
        self._initialize()

    def _initialize(self) -> None:
        """He's normal weights for convolutions (He 2015b), zero for the last scale of each branch."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for module in self.modules():
            if isinstance(module, Residual):
                nn.init.zeros_(module.layers[-1].norm.weight)  # type: ignore[arg-type, union-attr]

    def forward(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X), normalised -> logits (B, L); features (B, D) of a model without labels."""
        features = self.features(images)
        return features if self.classifier is None else self.classifier(features)

    def features(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X) -> (B, D): what the classifier reads."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))


class Normed(nn.Module):
    """A layer that mixes (a convolution, or attention) and the batch norm of what it gives. No activation."""

    def __init__(self, mixer: nn.Module, width: int) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.mixer(x))


class Convolution(nn.Conv2d):
    """Channels last in memory: it trains a quarter to a third faster. Not so in training with few channels on a
    processor: the backward pass of oneDNN (of PyTorch 2.13) writes beyond the gradient of a 1 x 1 convolution with
    stride there, and the process ends without a message."""

    def forward(self, x: Tensor) -> Tensor:
        if self.in_channels < FEW and x.device.type == "cpu" and torch.is_grad_enabled():
            x = self._conv_forward(x.contiguous(), self.weight.contiguous(), self.bias)
            return x if self.out_channels < FEW else x.contiguous(memory_format=torch.channels_last)
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class Stem(Normed):
    """images (B, C, Y, X) -> (B, width, Y / 4, X / 4), or (B, width, Y, X) where they are small."""

    def __init__(self, channels: int, width: int, *, small: bool) -> None:
        kernel, stride = (3, 1) if small else (7, 2)
        super().__init__(Convolution(channels, width, kernel, stride, kernel // 2, bias=False), width)
        self.small = small

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x).relu()
        return x if self.small else F.max_pool2d(x, 3, 2, 1)


class Stage(nn.Module):
    """Blocks one after another."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Residual(nn.Module):
    """relu(x + f(x)): x (B, channels, Y, X) -> (B, width, Y / stride, X / stride)."""

    def __init__(self, c: ResNetConfig, channels: int, width: int, stride: int, stage: int, mixing: Mixing) -> None:
        super().__init__()
        if c.block == "basic":
            mixers = [(mixing(channels, width, stride, stage), width), (mixing(width, width, 1, stage), width)]
        else:
            inner = width // REDUCTION
            outer_stride, inner_stride = (stride, 1) if c.stride_in_1x1 else (1, stride)
            mixers = [
                (Convolution(channels, inner, 1, outer_stride, bias=False), inner),
                (mixing(inner, inner, inner_stride, stage), inner),
                (Convolution(inner, width, 1, bias=False), width),
            ]
        self.layers = nn.ModuleList(Normed(mixer, outputs) for mixer, outputs in mixers)
        self.squeeze = None if c.squeeze is None else SqueezeExcitation(width, c.squeeze)
        changes = channels != width or stride != 1
        self.shortcut = Normed(Convolution(channels, width, 1, stride, bias=False), width) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        branch = x
        for number, layer in enumerate(self.layers):
            branch = layer(branch.relu() if number else branch)
        if self.squeeze is not None:
            branch = self.squeeze(branch)
        return (branch + (x if self.shortcut is None else self.shortcut(x))).relu()


def convolution(channels: int, width: int, stride: int, stage: int) -> nn.Module:
    """What mixes in a plain ResNet, the same in every stage."""
    return Convolution(channels, width, 3, stride, 1, bias=False)
