"""SKNet: a ResNet that selects between two sizes of a kernel for each channel (Li, Wang, Hu & Yang 2019).

x -> two branches: a 3 x 3 convolution, and one with dilation 2, which covers 5 x 5 positions
  -> sum of the branches -> mean over the image -> linear, to 1/16 -> norm, ReLU -> linear
  -> softmax over the branches, for each channel -> sum of the branches with these weights

In every residual block, this layer replaces one convolution: the 3 x 3 convolution of a bottleneck block, or the first
convolution of a basic block. Each branch reads half of the channels, as in the library timm. In the paper, both
branches read all channels, in groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.config import Size
from manyheads.errors import UserError
from manyheads.models.resnet import Convolution, NormalizedLayer, ResNet, ResNetConfig
from manyheads.models.squeeze_excitation import inner_width

DILATIONS = (1, 2)  # dilation of the 3 x 3 kernel of each branch; with 2, the kernel covers 5 x 5 positions


@dataclass(frozen=True)
class SKNetConfig(ResNetConfig):
    """Sizes of a ResNet and of its selective kernels.

    reduction  ratio of the number of channels to the number of hidden units that compute the weights, r in the paper
    split      if True, each branch reads half of the channels; if False, all of them
    """

    reduction: Size = 16
    split: bool = True


class SKNet(ResNet[SKNetConfig]):
    """ResNet with selective kernels. Images in, label logits out."""

    def __init__(self, config: SKNetConfig) -> None:
        super().__init__(config)
        self.replace_inner_layers(
            lambda channels, width, stride: SelectiveKernel(
                channels, width, stride, reduction=config.reduction, split=config.split
            )
        )


class SelectiveKernel(nn.Module):
    """Convolution with a kernel of 3 x 3 or 5 x 5: x (B, channels, Y, X) -> (B, width, Y / stride, X / stride)."""

    def __init__(self, channels: int, width: int, stride: int = 1, *, reduction: int = 16, split: bool = True) -> None:
        super().__init__()
        if split and channels % len(DILATIONS):
            raise UserError(
                f"a selective kernel has {channels} input channels: expected an even number for split=true (stem_width,"
                " one of the widths, or a quarter of one in bottlenecks)"
            )
        self.split = split
        inputs = channels // len(DILATIONS) if split else channels
        self.branches = nn.ModuleList(
            NormalizedLayer(Convolution(inputs, width, 3, stride, reach, reach, bias=False), width)
            for reach in DILATIONS
        )
        self.gate = BranchAttention(width, len(DILATIONS), inner_width(width, reduction), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inputs = x.chunk(len(DILATIONS), dim=1) if self.split else [x] * len(DILATIONS)
        return self.gate(*(branch(part).relu() for branch, part in zip(self.branches, inputs, strict=True)))


class BranchAttention(nn.Module):
    """Weighted sum of branches (B, C, Y, X) -> (B, C, Y, X), with weights that sum to one for each channel.

    inner  number of hidden units
    bias   True if the two linear layers have a bias
    """

    def __init__(self, channels: int, branches: int, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.reduce = nn.Linear(channels, inner, bias)
        self.norm = nn.BatchNorm1d(inner)
        self.select = nn.Linear(inner, branches * channels, bias)

    def forward(self, *branches: Tensor) -> Tensor:
        weights = self.weights(*branches).unbind(1)
        scaled = [weight[:, :, None, None] * branch for weight, branch in zip(weights, branches, strict=True)]
        return reduce(torch.add, scaled)

    def weights(self, *branches: Tensor) -> Tensor:
        """Return the weight of each of N branches for each channel, (B, N, C), from 0 to 1."""
        hidden = self.reduce(torch.stack([branch.mean((2, 3)) for branch in branches]).sum(0))
        norm = self.norm
        # A single image has no batch statistics, so use the running ones. In training on several ranks, the norm has
        # another class and computes the statistics over the images of all ranks.
        if self.training and len(hidden) == 1 and isinstance(norm, nn.BatchNorm1d):
            hidden = F.batch_norm(hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        else:
            hidden = norm(hidden)
        return self.select(hidden.relu()).unflatten(1, (len(branches), -1)).softmax(1)
