"""Maps over an image: which patch each query and key is, whatever form the layer keeps its maps in.

layer                    its map as recorded                                  queries and keys
ViT's                    (1, H, T, T)                                         class tokens, patches
non-local block          (1, 1, N, Nk)                                        positions; those left by its pooling
stand-alone, its stem    (1, H, blocks, queries of a block, keys around it)   positions: spread out over the image here
attention as convolution (1, H, T, T)                                         pixels

A clip's frames stand one below the other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from manyheads.analysis.sides import Side
from manyheads.models.conv_attention import ContentAttention, PositionalAttention
from manyheads.models.local_attention import AttentionStem, LocalAttention
from manyheads.models.nonlocal_net import NonLocalBlock
from manyheads.models.vit import ViT

MOST_WEIGHTS = 2**28  # of a layer's heads together, when spread out over the image


def image_layer(
    model: nn.Module, module: nn.Module, shape: torch.Size | None, weights: Tensor
) -> tuple[Tensor, Side, Side] | None:
    """The map (1, heads, queries, keys) and its sides, of a layer whose input had that shape; None for a text's."""
    if isinstance(model, ViT):
        tokens = (("[class]", model.class_token), ("[distillation]", model.distillation_token))
        side = Side.patches(model.config.grid, [name for name, token in tokens if token is not None])
        return weights, side, side
    if shape is None:
        return None
    if isinstance(module, PositionalAttention | ContentAttention):
        side = Side.patches((shape[1], shape[2]))
        return weights, side, side
    if isinstance(module, NonLocalBlock):
        frames, height, width = (1, *shape[2:])[-3:]
        rows, columns = (max(1, size // module.pool) for size in (height, width))
        down, across = (min(module.pool, size) * (size // module.pool or 1) / size for size in (height, width))
        keys = Side.patches((frames * rows, columns), cover=(down, across))
        return weights, Side.patches((frames * height, width)), keys
    if isinstance(module, LocalAttention | AttentionStem):
        height, width = shape[2:]
        if isinstance(module, AttentionStem):
            spread = _spread(weights, height, width, module.window, 0)
        else:
            spread = _spread(weights, height, width, min(module.query_block, max(height, width)), module.reach)
        side = Side.patches((height, width))
        return spread, side, side
    return None


def _spread(weights: Tensor, height: int, width: int, block: int, reach: int) -> Tensor:
    """(1, H, N, block^2, (block + 2 reach)^2) -> (1, H, Y * X, Y * X): zeros where nobody could look."""
    positions, heads = height * width, weights.shape[1]
    if heads * positions**2 > MOST_WEIGHTS:
        raise ValueError(
            f"the maps of {heads} heads on {height} x {width} positions are too large: choose fewer heads, or layers of"
            " a lower resolution"
        )

    def places(side: int, before: int) -> Tensor:
        """The position in the image of everything around each block (N, side^2); those outside are the last one."""
        along = [
            torch.arange(0, length, block)[:, None] + torch.arange(-before, side - before) for length in (height, width)
        ]  # (blocks, side) each
        y, x = along[0][:, None, :, None], along[1][None, :, None, :]
        there = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        return torch.where(there, y * width + x, positions).flatten(2).flatten(0, 1)

    spread = weights.new_zeros(heads, positions + 1, positions + 1)
    queries, keys = places(block, 0), places(block + 2 * reach, reach)
    spread[:, queries[:, :, None], keys[:, None, :]] = weights[0]
    return spread[None, :, :positions, :positions]
