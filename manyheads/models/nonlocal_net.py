"""Non-local networks: attention blocks between the convolutions of a ResNet (Wang, Girshick, Gupta & He 2018).

The output of a block at position i is a sum over all positions j of the image, or of all frames of a clip:

    z = x + W_z y,   y_i = sum_j f(x_i, x_j) g(x_j) / C

The table lists the kinds of blocks. f compares two positions, C normalizes the sum, and the last column shows how the
block is computed as attention with one head.

kind              f                                   C               attention scores
"gaussian"        exp(x_i x_j)                        sum of the f    x x^T, where only the values are projected
"embedded"        exp(theta(x_i) phi(x_j))            sum of the f    queries theta(x), keys phi(x)
"dot"             theta(x_i) phi(x_j)                 number of j     as "embedded", divided by the count, no softmax
"concatenation"   ReLU(w [theta(x_i), phi(x_j)])      number of j     explicit scores, additive

The linear maps theta, phi and g project to half of the channels. Keys and values are max-pooled 2 x 2 (never over
frames) after phi and g, as in section 3.3; the authors' code pools before. W_z is followed by a batch norm, whose scale
starts at zero. Without the norm (`identity` "convolution"), W_z itself starts at zero. Therefore a new block initially
changes nothing and can be inserted into a trained network.

For a clip (B, C, T, Y, X), the convolutions process each frame separately, and the non-local blocks the whole clip.
This is the network C2D of the paper, without its poolings over time. The order of the frames has no effect on it. The
convolutions of the stages in `temporal` have kernels of 3 x 3 x 3, which see the frames before and after a frame. This
is the network I3D of the paper (section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.config import Layers
from manyheads.core.tap import Grid, Tap
from manyheads.errors import UserError
from manyheads.models.resnet import ResNet, ResNetConfig, Stage, Stages, convolution

Kind = Literal["gaussian", "embedded", "dot", "concatenation"]
POOL = 2


@dataclass(frozen=True)
class NonLocalConfig(ResNetConfig):
    """Sizes of a ResNet and of its non-local blocks.

    The defaults are the paper's five blocks in ResNet-50 (section 4.1).

    stages    stages with non-local blocks; stages 2 and 3 are res3 and res4 in the paper. If empty, the model is a
              plain ResNet, which accepts video clips, too
    temporal  stages whose 3 x 3 convolutions also extend over three frames of a clip. By default, there are none
    every     number of residual blocks in these stages after which a non-local block follows
    scaled    if True, scores are divided by the square root of the query width, as in the authors' code but not in the
              paper
    pooled    if True, keys and values are max-pooled
    identity  parameters that start at zero, so that the block first changes nothing: the scale of a batch norm after
              W_z ("norm"), or W_z itself, without a norm ("convolution")
    """

    kind: Kind = "embedded"
    stages: Stages = (2, 3)
    temporal: Stages = ()
    every: Layers = 2
    scaled: bool = False
    pooled: bool = True
    identity: Literal["norm", "convolution"] = "norm"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, stages in (("stages", self.stages), ("temporal", self.temporal)):
            if max(stages, default=0) > len(self.depths):
                raise UserError(f"{name} is {stages}: expected stages from 1 to {len(self.depths)}")
        if self.stages and all(self.depths[stage - 1] < self.every for stage in self.stages):
            raise UserError(
                f"every is {self.every}, but stages {self.stages} have fewer blocks, so that none is non-local: lower "
                "it"
            )


class NonLocalNet(ResNet[NonLocalConfig]):
    """ResNet with non-local blocks. Images or video clips in, label logits out."""

    def __init__(self, config: NonLocalConfig) -> None:
        c = config

        def mixing(channels: int, width: int, stride: int, stage: int) -> nn.Module:
            kind = ClipConvolution if stage in c.temporal else convolution
            return kind(channels, width, stride, stage)

        super().__init__(c, mixing)
        for number, (stage, width) in enumerate(zip(self.stages, c.widths, strict=True), 1):
            assert isinstance(stage, Stage)
            blocks: list[nn.Module] = []
            for count, block in enumerate(stage.blocks, 1):
                blocks.append(block)
                if number in c.stages and count % c.every == 0:
                    blocks.append(NonLocalBlock(width, c.kind, scaled=c.scaled, pooled=c.pooled, identity=c.identity))
            stage.blocks = nn.ModuleList(blocks)

    def features(self, images: Tensor) -> Tensor:
        """Return the features averaged over all positions, (B, D), for images (B, C, Y, X) or clips (B, C, T, Y, X)."""
        batch, clips = len(images), images.dim() == 5
        for module in self.modules():
            if isinstance(module, ClipConvolution):
                module.frames = images.shape[2] if clips else 1
        # frames are processed like a batch of images, (B * T, C, Y, X)
        x = self.stem(images.transpose(1, 2).flatten(0, 1) if clips else images)
        for stage in self.stages:
            assert isinstance(stage, Stage)
            for block in stage.blocks:
                if clips and isinstance(block, NonLocalBlock):
                    x = block(x.unflatten(0, (batch, -1)).transpose(1, 2)).transpose(1, 2).flatten(0, 1)
                else:
                    x = block(x)
        return x.mean((2, 3)).unflatten(0, (batch, -1)).mean(1)


class ClipConvolution(nn.Conv3d):
    """Convolution over 3 frames, rows and columns: frames (B * T, channels, Y, X) of B clips -> (B * T, width, Y', X').

    frames  number of frames T of a clip, which the network sets
    """

    frames = 1

    def __init__(self, channels: int, width: int, stride: int, stage: int) -> None:
        super().__init__(channels, width, 3, (1, stride, stride), 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        clips = x.unflatten(0, (-1, self.frames)).transpose(1, 2)
        return super().forward(clips).transpose(1, 2).flatten(0, 1)


class NonLocalBlock(nn.Module):
    """Non-local block: x (B, C, Y, X) or (B, C, T, Y, X) -> the same shape. See the docstring of this module.

    inner  number of output channels of the projections theta, phi and g. By default, half of the channels of x
    """

    def __init__(
        self,
        channels: int,
        kind: Kind = "embedded",
        *,
        inner: int | None = None,
        scaled: bool = False,
        pooled: bool = True,
        identity: Literal["norm", "convolution"] = "norm",
    ) -> None:
        super().__init__()
        inner = inner or max(1, channels // 2)
        self.heads, self.kind = 1, kind
        self.pool = POOL if pooled else 1
        self.scale = (channels if kind == "gaussian" else inner) ** -0.5 if scaled else 1.0
        projects = kind != "gaussian"
        # The linear layers are equivalent to 1 x 1 convolutions.
        self.theta = nn.Linear(channels, inner) if projects else None
        self.phi = nn.Linear(channels, inner) if projects else None
        self.g = nn.Linear(channels, inner)
        self.pair = nn.Linear(2 * inner, 1, bias=False) if kind == "concatenation" else None
        self.output = nn.Linear(inner, channels)
        self.norm = nn.BatchNorm1d(channels) if identity == "norm" else None
        self.tap = Tap()
        for layer in self.children():
            if isinstance(layer, nn.Linear):  # initialize as in the authors' code (Wang 2018, section 4.1)
                nn.init.normal_(layer.weight, std=0.01)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.output.weight if self.norm is None else self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        space = x.shape[2:]
        positions = x.flatten(2).transpose(1, 2)  # positions with channels last, (B, N, C)
        query = positions if self.theta is None else self.theta(positions)
        key = self._pooled(positions if self.phi is None else self.phi(positions), space)
        value = self._pooled(self.g(positions), space)
        scores = None
        if self.pair is not None:
            # The vector w of the kind "concatenation" is split: w [a, b] = w1 a + w2 b. Each half is (1, inner).
            of_query, of_key = self.pair.weight.chunk(2, dim=1)
            # scores of the only head, (B, 1, N, Nk)
            scores = (query @ of_query.T + (key @ of_key.T).transpose(1, 2)).relu()[:, None]
        y = attend(
            query[:, None],  # add an axis for the single head
            key[:, None] if scores is None else None,
            value[:, None],
            scores=scores,
            scale=self.scale,
            normalize="count" if self.kind in ("dot", "concatenation") else "softmax",
            tap=self.tap,
        )[:, 0]  # (B, N, inner)
        z = self.output(y).transpose(1, 2)  # output of the block without the residual, (B, C, N)
        return x + (z if self.norm is None else self.norm(z)).unflatten(2, space)

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        """Return the grid of positions of an input of the given shape, and the grid after pooling.

        Pooling drops an odd row or column.
        """
        frames, height, width = (1, *shape[2:])[-3:]
        rows, columns = (max(1, size // self.pool) for size in (height, width))
        down, across = (size // self.pool * self.pool / size or 1.0 for size in (height, width))
        return Grid(frames * height, width), Grid(frames * rows, columns, cover=(down, across))

    def _pooled(self, positions: Tensor, space: tuple[int, ...]) -> Tensor:
        """Max-pool positions (B, N, C) over 2 x 2 positions of each image to (B, Nk, C), a quarter of the positions."""
        if self.pool == 1:
            return positions
        # frames with channels first, (B, C, T or 1, Y, X)
        frames = positions.transpose(1, 2).unflatten(2, (-1, *space[-2:]))
        # An image with a single row or column is pooled only along its other axis.
        kernel = (1, *(min(self.pool, size) for size in space[-2:]))
        return F.max_pool3d(frames, kernel).flatten(2).transpose(1, 2)
