"""Logit lens of a Vision Transformer: the labels that its head gives the class token and the patches of each layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from manyheads.analysis.lens import LayerStates, layer_states
from manyheads.core.tap import Grid
from manyheads.errors import UserError
from manyheads.models.vit import ViT


def lens_fault(model: nn.Module) -> str:
    """Return the reason why a model has no lens for images, or an empty text."""
    if not isinstance(model, ViT):
        return f"the lens of images needs a ViT with a class token, found {type(model).__name__}"
    if model.config.pool != "class" or model.head is None:
        pool = f"(pool is {model.config.pool!r})"
        return f"the lens needs a head that reads the class token, but this model pools its patches {pool}"
    return ""


def image_states(model: nn.Module, pixels: Tensor, source: object) -> tuple[LayerStates, Grid]:
    """Return the states of all layers for an image (1, C, Y, X), and the grid of the patches.

    The head of the class token labels all positions. A distillation token is labeled by its own head, and the class
    token by both heads, as in a prediction.

    source  name of the model for error messages

    Raises UserError for a model without a head that reads only the class token.
    """
    if fault := lens_fault(model):
        raise UserError(f"{source}: {fault}")
    assert isinstance(model, ViT)
    assert model.head is not None
    head, second = model.head, model.distillation_head

    def labels(states: Tensor) -> Tensor:
        logits: Tensor = head(model.pool(states.transpose(0, 1)))[None]  # (1, T, L): each state is a class token
        if second is None:
            return logits
        distilled = second(states[:, 1])
        return torch.cat([model.fuse(logits[:, 0], distilled)[:, None], distilled[:, None], logits[:, 2:]], 1)

    return layer_states(model, "encoder", labels, pixels), model.grids[0]
