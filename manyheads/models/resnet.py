"""ResNet: convolutions with residual connections (He, Zhang, Ren & Sun 2015), in the variant v1.5.

image -> stem -> 4 stages of residual blocks, each stage but the first at half the resolution -> mean -> linear

stem                                     residual block: relu(x + f(x)), every convolution with a batch norm
"7x7"  7 x 7, stride 2, 3 x 3 max-pool   "basic"       f = 3 x 3, relu, 3 x 3
"3x3"  3 x 3, for images of 32 x 32      "bottleneck"  f = 1 x 1 to a quarter of the width, relu, 3 x 3, relu, 1 x 1

In a block that halves the resolution, the first 3 x 3 convolution has stride 2. This is the variant v1.5; in the paper,
the first 1 x 1 convolution has stride 2. If f changes the shape, a 1 x 1 convolution projects x. The last norm of each
branch f starts with a scale of zero, so that a new network behaves like a shallow one (Goyal 2017, section 5.1).

Subclasses with attention between or instead of the convolutions pass other layers as `mixing`, or add blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import LabelConfig, Layers, Pixels, Range, Size
from manyheads.core.interface import ReadsImages
from manyheads.core.layers import LabelHead
from manyheads.errors import UserError
from manyheads.models.squeeze_excitation import SqueezeExcitation

# Constructor of a layer that mixes neighboring positions. Its arguments are input channels, output width, stride, and
# the stage number, from 1. The returned module maps images to (B, width, Y, X).
Mixing = Callable[[int, int, int, int], nn.Module]
REDUCTION = 4  # factor by which a bottleneck block reduces the number of channels
# maximum number of channels for which convolutions use the workaround that the class Convolution describes
FEW_CHANNELS = 16
Stages = tuple[Annotated[int, Range(1, 100)], ...]  # stage numbers, counted from 1


@dataclass(frozen=True)
class ConvNetConfig(LabelConfig):
    """Labels and images of a convolutional network.

    labels      classes in the order of the logits. If empty, the model returns features instead of logits
    image_size  intended size of the images; other sizes work, too
    """

    labels: tuple[str, ...] = tuple(map(str, range(1000)))
    image_size: Pixels = 224
    channels: Size = 3


@dataclass(frozen=True)
class ResNetConfig(ConvNetConfig):
    """Sizes and options of a ResNet. The defaults are those of ResNet-50.

    depths         number of residual blocks per stage
    widths         output channels of each stage
    squeeze        channel reduction of a squeeze-and-excitation in every block, 16 in its paper. By default, blocks
                   have no squeeze-and-excitation
    stride_in_1x1  True if the first 1 x 1 convolution of a bottleneck halves the resolution, as in the original paper;
                   False if the 3 x 3 convolution does
    halve_first    if True, the first stage also halves the resolution
    """

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
        check_stages(self.depths, self.widths)
        if self.block == "bottleneck" and any(width % REDUCTION for width in self.widths):
            raise UserError(f"widths is {self.widths}: expected multiples of {REDUCTION} for bottlenecks")
        if self.block == "basic" and self.stride_in_1x1:
            raise UserError("stride_in_1x1 has no effect in a basic block: remove it, or set block=bottleneck")


def check_stages(depths: Sequence[int], widths: Sequence[int]) -> None:
    """Raise UserError unless there is a number of blocks and a width for each of one or more stages."""
    if len(depths) != len(widths) or not depths:
        raise UserError(f"depths is {depths} and widths is {widths}: expected one of each per stage")


N_co = TypeVar("N_co", bound=ConvNetConfig, covariant=True)
R_co = TypeVar("R_co", bound=ResNetConfig, covariant=True)


class ConvNet(ReadsImages[N_co]):
    """Convolutional image classifier: a stem, stages of blocks, a mean over the image, and a linear classifier.

    stages  stages of blocks, see `stages_of`
    width   number of channels before the classifier
    top     module between the last stage and the mean
    """

    def __init__(
        self, config: N_co, stem: nn.Module, stages: Sequence[Stage], width: int, top: nn.Module | None = None
    ) -> None:
        super().__init__(config, channels=config.channels, image_size=config.image_size, labels=config.labels)
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.top = top
        self.classifier = LabelHead(width, len(config.labels)) if config.labels else None
        draw_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return label logits (B, L) for normalized images (B, C, Y, X); features (B, D) if there are no labels."""
        features = self.features(images)
        return features if self.classifier is None else self.classifier(features)

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features (B, D), which are the input of the classifier, for images (B, C, Y, X)."""
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return (x if self.top is None else self.top(x)).mean((2, 3))


def draw_weights(net: nn.Module) -> None:
    """Draw He normal weights for all convolutions of a module, with the fan-out of one group. Source: He 2015b."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            with torch.no_grad():
                module.weight.mul_(module.groups**0.5)


class ResNet(ConvNet[R_co]):
    """ResNet image classifier. Images in, label logits out.

    mixing  constructor of the mixing layers in the blocks. By default, 3 x 3 convolutions
    stem    module before the stages. By default, the stem of the configuration
    """

    def __init__(self, config: R_co, mixing: Mixing | None = None, stem: nn.Module | None = None) -> None:
        c = config

        def block(channels: int, width: int, stage: int, index: int) -> nn.Module:
            stride = 2 if index == 0 and (stage > 0 or c.halve_first) else 1
            return Residual(c, channels, width, stride, stage + 1, mixing or convolution)

        stem = stem or Stem(c.channels, c.stem_width, small=c.stem == "3x3")
        super().__init__(c, stem, stages_of(c.depths, c.widths, c.stem_width, block), c.widths[-1])
        for module in self.modules():  # A new branch returns zeros.
            if isinstance(module, Residual):
                nn.init.zeros_(module.layers[-1].norm.weight)  # type: ignore[arg-type, union-attr]

    def replace_inner_layers(self, make: Callable[[int, int, int], nn.Module]) -> None:
        """Replace the last layer but one of each branch: the 3 x 3 convolution of a bottleneck, or the first of two.

        make  constructor of a layer with norms. Its arguments are input channels, output width and stride
        """
        for block in self.modules():
            if isinstance(block, Residual):
                layer = block.layers[-2].mixer
                assert isinstance(layer, Convolution)
                block.layers[-2] = make(layer.in_channels, layer.out_channels, layer.stride[0])
                draw_weights(block.layers[-2])


class NormalizedLayer(nn.Module):
    """Layer that mixes neighboring positions (convolution or attention), followed by a batch norm."""

    def __init__(self, mixer: nn.Module, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm: nn.Module = nn.BatchNorm2d(width, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.mixer(x))


class Convolution(nn.Conv2d):
    """Convolution in the channels-last memory format, which trains 25 to 33% faster.

    The format is not used for training on a CPU with few channels. In that case, the backward pass of oneDNN (in
    PyTorch 2.13) writes beyond the gradient of a strided 1 x 1 convolution, and the process crashes without a message.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.in_channels < FEW_CHANNELS and x.device.type == "cpu" and torch.is_grad_enabled():
            x = self._conv_forward(x.contiguous(), self.weight.contiguous(), self.bias)
            return x if self.out_channels < FEW_CHANNELS else x.contiguous(memory_format=torch.channels_last)
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class Stem(NormalizedLayer):
    """Stem of a ResNet, the layers before the stages: images (B, C, Y, X) -> (B, width, Y / 4, X / 4).

    If `small`, the stem keeps the resolution: (B, width, Y, X).
    """

    def __init__(self, channels: int, width: int, *, small: bool) -> None:
        kernel, stride = (3, 1) if small else (7, 2)
        super().__init__(Convolution(channels, width, kernel, stride, kernel // 2, bias=False), width)
        self.small = small

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x).relu()
        return x if self.small else F.max_pool2d(x, 3, 2, 1)


class Stage(nn.Module):
    """Sequence of blocks."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def stages_of(
    depths: Sequence[int], widths: Sequence[int], channels: int, block: Callable[[int, int, int, int], nn.Module]
) -> list[Stage]:
    """Return the stages of a network, from the number of blocks and the width of each.

    channels  number of channels before the first stage
    block     constructor of a block. Its arguments are input channels, width, and the indices of the stage and of the
              block in the stage, from 0
    """
    return [
        Stage([block(width if index else before, width, stage, index) for index in range(depth)])
        for stage, (depth, before, width) in enumerate(zip(depths, (channels, *widths), widths, strict=False))
    ]


class Residual(nn.Module):
    """Residual block relu(x + f(x)): x (B, channels, Y, X) -> (B, width, Y / stride, X / stride)."""

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
        self.layers = nn.ModuleList(NormalizedLayer(mixer, outputs) for mixer, outputs in mixers)
        self.squeeze = None if c.squeeze is None else SqueezeExcitation(width, c.squeeze)
        self.shortcut = shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        branch = x
        for index, layer in enumerate(self.layers):
            branch = layer(branch.relu() if index else branch)
        if self.squeeze is not None:
            branch = self.squeeze(branch)
        return (branch + (x if self.shortcut is None else self.shortcut(x))).relu()


def shortcut(channels: int, width: int, stride: int) -> NormalizedLayer | None:
    """Return the projection of a residual block; None if the shape does not change."""
    if channels == width and stride == 1:
        return None
    return NormalizedLayer(Convolution(channels, width, 1, stride, bias=False), width)


def convolution(channels: int, width: int, stride: int, stage: int) -> nn.Module:
    """Return the layer of a residual block that mixes neighboring positions: a 3 x 3 convolution.

    The argument `stage` has no effect, because all stages use the same type of layer.
    """
    return Convolution(channels, width, 3, stride, 1, bias=False)
