"""Transfer of the weights of a model to a model with another head or size, as the start of fine-tuning."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from manyheads.core.heads import CLASSIFIERS, belongs_to_head
from manyheads.core.positions import resize_positions
from manyheads.errors import UserError, shown
from manyheads.models.presets import build
from manyheads.models.vit import ViT

M = TypeVar("M", bound=nn.Module)


def adapt(model: M, **settings: Any) -> tuple[M, list[str]]:
    """Return a model with the same weights but changed settings, and the names of its new tensors.

    New tensors are initialized, because the given model has no weights for them.

    head, labels  Classifier weights are kept if head, labels and target remain the same, and otherwise initialized.
                  Other parts of a head are kept if the old and the new head have them. The layers `representation` and
                  `projection` of a ViT belong to pretraining and are dropped with the old head, unless the settings
                  name them (Dosovitskiy 2020, section 3.2).
    vocab         A larger vocabulary adds tokens. Their embeddings and output biases are newly initialized.
    channels      Number of color channels. The weights of the first convolution are summed over the old channels and
                  divided equally among the new ones.
    image_size    Image size of a ViT. The position embeddings are resized to the new grid (section 3.2).
    others        Settings that change no tensor shapes, such as dropout rates. Settings that would change a shape raise
                  UserError.
    """
    old: Any = model.config
    named = ", ".join(sorted(set(settings) - {"head", "labels", "target"})) or "these settings"
    if isinstance(model, ViT) and settings.get("labels", old.labels) != old.labels:
        settings = {"representation": None, "projection": None, **settings}
    config = replace(old, **settings)
    adapted = build(config)
    weights, new = model.state_dict(), adapted.state_dict()
    changes = {name for name, value in settings.items() if getattr(old, name) != value}
    relabeled = not changes.isdisjoint(("head", "labels", "target"))
    if relabeled:
        weights = {name: tensor for name, tensor in weights.items() if _module_name(name) not in CLASSIFIERS}
    if "vocab" in changes and (added := config.vocab - old.vocab) > 0:
        for name in {"embedding.weight", "output_bias"} & {*weights} & {*new}:
            weights[name] = torch.cat([weights[name], new[name][-added:].to(weights[name])])
    if isinstance(model, ViT):
        if config.tokens - math.prod(config.grid) == old.tokens - math.prod(old.grid):
            # The code of DINOv2 resizes with antialiasing for its models with registers, and without it for the earlier
            # models.
            smooth = bool(config.registers)
            weights["positions.table"] = resize_positions(
                weights["positions.table"], old.grid, config.grid, antialias=smooth
            )
        for name in new if relabeled else ():  # As in the ViT paper, the weights of a new head are zero.
            if _module_name(name) in CLASSIFIERS:
                new[name] = torch.zeros_like(new[name])
    if "channels" in changes:
        for name, kernel in weights.items():
            if name in new and kernel.dim() == 4 and kernel.shape[1] == old.channels != new[name].shape[1]:
                weights[name] = kernel.sum(1, keepdim=True).expand_as(new[name]) / config.channels
    missing = [name for name in weights if name not in new and not belongs_to_head(name)]
    weights = {name: tensor for name, tensor in weights.items() if name in new}
    if changed := missing + [name for name, tensor in weights.items() if tensor.shape != new[name].shape]:
        raise UserError(f"{named} would change the shapes of {shown(changed)}")
    adapted.load_state_dict({**new, **weights})
    adapted.to(next(model.parameters()).device).train(model.training)
    return adapted, [name for name in new if name not in weights]


def _module_name(name: str) -> str:
    return name.partition(".")[0]
