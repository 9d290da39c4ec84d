"""Grad-CAM: the feature map of the last convolution, weighted by its mean gradients.

value(y, x) = relu(sum over channels k of (mean over positions of d score / d map_k) * map_k(y, x))

For a ViT, the feature map is the input of the last block at the image patches. The output of the last block is not
used, because the head of many ViTs reads only the class token from it.

Source: Selvaraju 2017, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization".
"""

from __future__ import annotations

from contextlib import ExitStack

from torch import Tensor

from manyheads.analysis.explanations.gradients import Score
from manyheads.analysis.readout import Readout
from manyheads.core.recording import record
from manyheads.models.resnet import ConvNet, Stage
from manyheads.models.vit import ViT


def has_feature_map(readout: Readout) -> bool:
    """Return True for a convolutional network, and for a ViT."""
    return isinstance(readout.model, ConvNet | ViT)


def grad_cam(score: Score) -> Tensor:
    """Return the Grad-CAM of each position of the feature map, (Y, X)."""
    model, found = score.readout.model, list[Tensor]()
    if isinstance(model, ViT):
        with record(model, [-2], of="residual", gradients=True) as states:
            logits = score.readout.logits()
        found += next(iter(states.values()))
    else:
        assert isinstance(model, ConvNet)
        stage = model.stages[-1]
        assert isinstance(stage, Stage)
        last = stage.blocks[-1] if model.top is None else model.top
        with ExitStack() as undo:
            undo.callback(last.register_forward_hook(lambda module, given, output: found.append(output)).remove)
            logits = score.readout.logits()
    _, (slope,) = score.gradients(logits, found)
    if isinstance(model, ViT):
        first, grid = model.config.special_tokens, model.config.grid
        found, slope = [found[0][:, first:].mT.unflatten(-1, grid)], slope[:, first:].mT.unflatten(-1, grid)
    return (slope.mean((2, 3), keepdim=True) * found[0]).sum(1).relu()[0]
