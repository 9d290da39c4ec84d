"""DETR: detection of objects as a prediction of a set (Carion et al. 2020, "End-to-End Object Detection").

image -> ResNet -> 1 x 1 convolution -> cells (B, Y * X, D)          + positions -> encoder -> memory
object queries (N, D), each of which may find one object             + memory    -> decoder -> states (B, N, D)
state of a query -> linear -> logits over labels and "no object";   -> 3 linear layers -> box

Self-attention in the encoder adds two-dimensional sine positions to queries and keys, in every layer, but not to
values. The decoder starts from zeros: its queries and keys get the learned object queries as positions, and its
cross-attention adds the sine positions to the keys (figure 10 of the paper). Every layer of the decoder makes a
prediction, with the same heads, and all of them are trained (auxiliary losses).

A box is (center x, center y, width, height), as fractions of the width and the height of the image.

DETR learns slowly. Three remedies are settings:

anchors  Each query has a point in the image, which is learned. The sine positions of this point are its position, and
         its box is predicted relative to the point (Wang et al. 2021, "Anchor DETR"; Liu et al. 2022, "DAB-DETR"). The
         points begin on a grid, and queries and keys of cross-attention begin with equal projections, so that a query
         attends to the cells around its point. The learned object queries are the input of the decoder.
dense    In training, a linear layer predicts the label of the object in each cell of the encoder's output, so that the
         ResNet learns from every cell (a simple form of Zong et al. 2023, "DETRs with Collaborative Hybrid Assignments
         Training").
groups   In training, several groups of queries, which do not attend to each other, each find all objects (Chen et al.
         2022, "Group DETR"). Only the first group predicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.config import Divides, Labels, Layers, Pixels, Range, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.interface import ReadsImages
from manyheads.core.layers import FeedForward, xavier_uniform
from manyheads.core.masks import Mask
from manyheads.models.local_attention import LocalAttentionConfig, LocalAttentionNet
from manyheads.models.resnet import NormalizedLayer, Stages

WidthDivisor = Annotated[int, Range(1, 2**12), Divides("width")]


@dataclass(frozen=True)
class DetrConfig(LocalAttentionConfig):
    """Sizes of a DETR and of its ResNet, which may have local attention in some stages. The defaults are DETR-R50.

    labels         names of the kinds of objects
    image_size     length of the longer side of the images in pixels
    width          width D of encoder and decoder, a multiple of 4
    queries        number of object queries N, the largest number of objects that can be found in an image
    anchors        if True, each query has a point in the image (Anchor DETR)
    dense          if True, training also predicts the label of the object in each cell of the image
    groups         number of groups of queries in training (Group DETR)
    temperature    base of the frequencies of the sine positions. With 20, as in DAB-DETR, neighboring cells differ more
    dropout        dropout of the cells and of the outputs of sublayers
    frozen_norms   if True, the batch norms of the ResNet use fixed statistics and factors, as with pretrained weights
    """

    labels: Labels = tuple(map(str, range(91)))
    image_size: Pixels = 1333
    attends: Stages = ()
    front: Literal["attention", "convolution"] = "convolution"
    width: Size = 256
    queries: Annotated[int, Range(1, 10_000)] = 100
    anchors: bool = False
    dense: bool = False
    groups: Annotated[int, Range(1, 100)] = 1
    temperature: Annotated[float, Range(1, 10**6)] = 10_000.0
    encoder_layers: Layers = 6
    decoder_layers: Layers = 6
    encoder_heads: WidthDivisor = 8
    decoder_heads: WidthDivisor = 8
    encoder_feed_forward: Size = 2048
    decoder_feed_forward: Size = 2048
    activation: str = "relu"
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0
    frozen_norms: bool = False

    @property
    def stride(self) -> int:
        """Return the height and width of a cell in pixels."""
        stem = self.stem_window if self.front == "attention" else {"7x7": 4, "3x3": 1}[self.stem]
        return stem * 2 ** (len(self.depths) - 1 + self.halve_first)


class Detections(NamedTuple):
    """Predictions for object queries.

    logits  (..., N, L + 1) logits of the labels; the last one means "no object"
    boxes   (..., N, 4) center x, center y, width and height, as fractions of the image's sides
    """

    logits: Tensor
    boxes: Tensor


class Decoded(NamedTuple):
    """Results of encoder and decoder.

    states  normalized states of the object queries after each layer of the decoder, (layers, B, N, D). In training, of
            all groups of queries, (layers, B, groups * N, D)
    memory  output of the encoder, (B, Y * X, D)
    valid   table of the cells whose pixels are not padding, (B, Y, X)
    """

    states: Tensor
    memory: Tensor
    valid: Tensor


class Detr(ReadsImages[DetrConfig]):
    """DETR. Images (B, C, Y, X) in, labels and boxes of N object queries out."""

    undecayed: tuple[str, ...] = ("queries",)

    def __init__(self, config: DetrConfig) -> None:
        super().__init__(config, channels=config.channels, image_size=config.image_size, labels=config.labels)
        c = config
        self.backbone = LocalAttentionNet(replace(c, labels=()))
        if c.frozen_norms:
            freeze_norms(self.backbone)
        self.reduce = nn.Conv2d(c.widths[-1], c.width, 1)
        self.queries = nn.Parameter(torch.empty(c.groups * c.queries, c.width).normal_())
        self.encoder, self.decoder = (
            Stack([_block(c, heads, hidden, cross=cross) for _ in range(layers)], norm, biased=True)
            for layers, heads, hidden, cross, norm in (
                (c.encoder_layers, c.encoder_heads, c.encoder_feed_forward, False, None),
                (c.decoder_layers, c.decoder_heads, c.decoder_feed_forward, True, nn.LayerNorm(c.width)),
            )
        )
        xavier_uniform(self.encoder)
        xavier_uniform(self.decoder)
        self.classifier = nn.Linear(c.width, len(c.labels) + 1)
        self.box = nn.ModuleList(nn.Linear(c.width, outputs) for outputs in (c.width, c.width, 4))
        self.cell_classifier = nn.Linear(c.width, len(c.labels) + 1) if c.dense else None
        self.anchors = nn.Parameter(anchor_grid(c.queries).repeat(c.groups, 1)) if c.anchors else None
        if c.anchors:
            for block in self.decoder.blocks:
                assert isinstance(block, Block)
                assert block.cross is not None
                block.cross.key.weight.data.copy_(block.cross.query.weight)

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> Detections:
        """Return the predictions of the last layer for normalized images (B, C, Y, X).

        sizes  number of rows and columns of each image that are not padding, (B, 2). By default, there is no padding
        """
        return self.predict(self.decode(images, sizes).states[-1])

    def cells(self, images: Tensor) -> Tensor:
        """Return the output of the ResNet before pooling, (B, C', Y', X'), for images (B, C, Y, X)."""
        x = self.backbone.stem(images)
        for stage in self.backbone.stages:
            x = stage(x)
        return x

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features (B, D) of the ResNet for images (B, C, Y, X)."""
        return self.backbone.features(images)

    def predict(self, states: Tensor) -> Detections:
        """Return the predictions for states of object queries, (..., N, D)."""
        x = states
        for layer in self.box[:-1]:
            x = layer(x).relu()
        box = self.box[-1](x)  # (..., N, 4) logits
        if self.anchors is not None:
            box = torch.cat([box[..., :2] + self.anchors[: box.shape[-2]], box[..., 2:]], -1)
        return Detections(self.classifier(states), box.sigmoid())

    def decode(self, images: Tensor, sizes: Tensor | None = None) -> Decoded:
        """Return the results of encoder and decoder for the arguments of `forward`."""
        c = self.config
        x = self.cells(images)
        valid = valid_cells(sizes, images, x)
        mask = None if sizes is None else Mask(dense=valid.flatten(1)[:, None, None])
        positions = grid_positions(valid, c.width, c.temperature).to(x.dtype)
        cells = dropout(self.reduce(x).flatten(2).transpose(1, 2), c.dropout, self.training)  # (B, Y * X, D)
        memory = self.encoder(cells, mask=mask, positions=positions)
        queries = self.queries if self.training else self.queries[: c.queries]
        group = torch.arange(len(queries), device=x.device)[None] // c.queries
        apart = Mask(segments=(group, group)) if len(queries) > c.queries else None
        at, x = queries.expand(len(images), -1, -1), torch.zeros_like(queries).expand(len(images), -1, -1)
        if self.anchors is not None:
            points = self.anchors[: len(queries)].sigmoid().flip(-1)  # (N, 2) fractions of height and width
            at, x = sines(points, c.width, c.temperature).to(x.dtype).expand_as(at), at
        states = []
        assert self.decoder.norm is not None
        for block in self.decoder.blocks:
            x = block(
                x, mask=apart, positions=at, memory=memory, memory_mask=mask, memory_positions=positions
            )  # (B, N, D)
            states.append(self.decoder.norm(x))
        return Decoded(torch.stack(states), memory, valid)


class FrozenBatchNorm(nn.Module):
    """Batch norm with fixed statistics and factors, (B, C, Y, X) -> (B, C, Y, X). It has no parameters."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach())
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def freeze_norms(net: nn.Module) -> None:
    """Replace the batch norms after the mixing layers of a ResNet by norms with fixed statistics and factors."""
    for layer in net.modules():
        if isinstance(layer, NormalizedLayer):
            assert isinstance(layer.norm, nn.BatchNorm2d)
            layer.norm = FrozenBatchNorm(layer.norm)


def valid_cells(sizes: Tensor | None, images: Tensor, cells: Tensor) -> Tensor:
    """Return a table of the cells whose pixels are not padding, (B, Y, X) boolean.

    A cell belongs to the pixel at its upper left corner, as in the authors' code.

    sizes   (B, 2) rows and columns of each image without padding; None if there is no padding
    images  padded images (B, C, rows, columns)
    cells   output of the backbone (B, C, Y, X)
    """
    (rows, columns), (y, x) = images.shape[2:], cells.shape[2:]
    if sizes is None:
        return torch.ones(len(images), y, x, dtype=torch.bool, device=images.device)
    row = torch.arange(y, device=images.device) * rows // y
    column = torch.arange(x, device=images.device) * columns // x
    return (row < sizes[:, :1])[:, :, None] & (column < sizes[:, 1:])[:, None]


def anchor_grid(count: int) -> Tensor:
    """Return points on a square grid over the image, (count, 2): the logits of x and y as fractions of its sides."""
    side = math.ceil(math.sqrt(count))
    line = (torch.arange(side) + 0.5) / side
    points = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).flatten(0, 1)
    return torch.logit(points[torch.arange(count) * side * side // count])


def grid_positions(valid: Tensor, width: int, temperature: float = 10_000.0) -> Tensor:
    """Return two-dimensional sine positions of the cells of images, (B, Y * X, width), row by row.

    The place of a cell is its number, from 1, divided by the number of valid cells of its row or column (section A.4).

    valid  table of the cells whose pixels are not padding, (B, Y, X)
    """
    places = []
    for axis in (1, 2):
        place = valid.float().cumsum(axis)
        places.append(place / (place.narrow(axis, -1, 1) + 1e-6))
    return sines(torch.stack(places, -1), width, temperature).flatten(1, 2)


def sines(places: Tensor, width: int, temperature: float) -> Tensor:
    """Return sine positions (..., width) of places (..., 2), the fractions of height and width.

    The first half of a vector encodes the height, the second half the width. The angles are fractions of a circle.
    """
    half = width // 2
    frequencies = temperature ** -(2 * torch.arange(half // 2, device=places.device) / half)
    angles = 2 * math.pi * places[..., None] * frequencies  # (..., 2, half / 2)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-3)


def _block(c: DetrConfig, heads: int, hidden: int, *, cross: bool) -> Block:
    def attention() -> Attention:
        return Attention(c.width, heads, dropout=c.attention_dropout)

    feed_forward = FeedForward(c.width, hidden, c.activation, c.activation_dropout)
    return Block(attention(), feed_forward, attention() if cross else None, dropout=c.dropout)
