"""EfficientNet: a convolutional network scaled in depth, width and resolution at once (Tan & Le 2019).

image -> 3 x 3 convolution, stride 2 -> 7 stages of blocks -> 1 x 1 convolution -> mean -> linear

block (MBConv, Sandler 2018): x -> 1 x 1 to `expand` times the channels -> depthwise convolution, one filter for each
channel -> squeeze-and-excitation -> 1 x 1 to the width of the stage, without activation. All blocks of a stage but the
first add x. Every convolution has a batch norm; the activation is SiLU.

Compound scaling (section 3.3): the table STAGES describes the smallest network, B0. A larger network multiplies its
numbers of channels by `width` and its numbers of blocks by `depth`, and reads larger images.

This network is the one of the paper's TensorFlow code. For an even image size, a convolution with stride 2 pads one
pixel less at the top and left. The weights in transformers and timm's `tf_efficientnet` have this padding;
timm's `efficientnet` pads all sides equally (padding=center, norm_eps=1e-5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Epsilon, Range, Rate
from manyheads.core.dropout import drop_path, dropout
from manyheads.models.resnet import ConvNet, ConvNetConfig, Convolution, NormalizedLayer, stages_of
from manyheads.models.squeeze_excitation import MULTIPLE, SqueezeExcitation

Factor = Annotated[float, Range(0, 100, above=True)]  # factor of compound scaling
FIRST, LAST = 32, 1280  # channels of the first and of the last convolution of B0


# expansion, kernel size, stride of the first block, channels and number of blocks of each stage of B0 (table 1)
STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip


@dataclass(frozen=True)
class EfficientNetConfig(ConvNetConfig):
    """Scale of an EfficientNet. The defaults are those of B0.

    width, depth      factors of the numbers of channels and of the numbers of blocks. Channels are rounded to multiples
                      of 8, numbers of blocks are rounded up
    padding           padding of convolutions with stride 2. "same": as in TensorFlow, for any image size; "end": as in
                      TensorFlow for an even size; "center": the same number of pixels on all sides
    centered          with padding=end, indices of the blocks whose padding is "center", as in transformers
    dropout           dropout rate before the classifier
    stochastic_depth  probability that the last block is skipped; it rises linearly from the first block, as in ViT
    """

    width: Factor = 1.0
    depth: Factor = 1.0
    padding: Literal["same", "end", "center"] = "same"
    centered: tuple[Annotated[int, Range(0, 100_000)], ...] = ()
    norm_eps: Epsilon = 1e-3
    dropout: Rate = 0.2
    stochastic_depth: Annotated[float, Range(0, 1, below=True)] = 0.2

    @property
    def depths(self) -> list[int]:
        return [math.ceil(self.depth * stage[4]) for stage in STAGES]

    def channels_of(self, base: int) -> int:
        """Return a number of channels, `base` in B0, for this width: a multiple of 8, at least 90% of the product."""
        exact = base * self.width
        rounded = max(MULTIPLE, int(exact + MULTIPLE / 2) // MULTIPLE * MULTIPLE)
        return rounded + MULTIPLE * (rounded < 0.9 * exact)


class EfficientNet(ConvNet[EfficientNetConfig]):
    """EfficientNet image classifier. Images in, label logits out."""

    def __init__(self, config: EfficientNetConfig) -> None:
        c = config
        channels, width = c.channels_of(FIRST), c.channels_of(LAST)
        stem = Activated(c, StridedConvolution(c.channels, channels, 3, 2, c.padding), channels)
        widths = [c.channels_of(stage[3]) for stage in STAGES]
        stages = stages_of(c.depths, widths, channels, lambda *sizes: MBConv(c, *sizes))
        super().__init__(c, stem, stages, width, Activated(c, Convolution(widths[-1], width, 1, bias=False), width))

    def features(self, images: Tensor) -> Tensor:
        return dropout(super().features(images), self.config.dropout, self.training)


class StridedConvolution(Convolution):
    """Convolution whose padding depends on the size of the image if its stride is 2, see `EfficientNetConfig`."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int, padding: str, groups: int = 1) -> None:
        fixed = stride == 1 or padding == "center"
        super().__init__(channels, width, kernel, stride, kernel // 2 * fixed, groups=groups, bias=False)
        self.rule = None if fixed else padding

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.rule is not None:
            after = self.kernel_size[0] // 2
            top, left = (after - (self.rule == "end" or size % 2 == 0) for size in x.shape[2:])
            x = F.pad(x, (left, after, top, after))
        return super()._conv_forward(x, weight, bias)


class Activated(NormalizedLayer):
    """Convolution with a batch norm and SiLU."""

    def __init__(self, c: EfficientNetConfig, convolution: nn.Module, width: int) -> None:
        super().__init__(convolution, width, c.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(super().forward(x))


class MBConv(nn.Module):
    """Inverted bottleneck block: x (B, channels, Y, X) -> (B, width, Y / stride, X / stride), rounded up.

    stage, index  indices of the stage and of the block in it, from 0. The first block of a stage does not add x
    """

    def __init__(self, c: EfficientNetConfig, channels: int, width: int, stage: int, index: int) -> None:
        super().__init__()
        expand, kernel, stride = STAGES[stage][:3]
        inner, number = channels * expand, sum(c.depths[:stage]) + index
        padding = "center" if number in c.centered else c.padding
        self.expand = None if expand == 1 else Activated(c, Convolution(channels, inner, 1, bias=False), inner)
        depthwise = StridedConvolution(inner, inner, kernel, 1 if index else stride, padding, groups=inner)
        self.depthwise = Activated(c, depthwise, inner)
        self.squeeze = SqueezeExcitation(inner, inner=channels // 4, activation=F.silu)
        self.project = NormalizedLayer(Convolution(inner, width, 1, bias=False), width, c.norm_eps)
        self.residual, self.rate = index > 0, c.stochastic_depth * number / sum(c.depths)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.depthwise(x if self.expand is None else self.expand(x))
        branch = self.project(self.squeeze(branch))
        return x + drop_path(branch, self.rate, self.training) if self.residual else branch
