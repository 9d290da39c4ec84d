"""These weights in a model of another head or size: the start of every fine-tuning."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from manyheads.core.positions import resize
from manyheads.errors import UserError
from manyheads.models.presets import build
from manyheads.models.vit import ViT

# parts of our models by name: those with a row for each label, and all that a head may have or lack
CLASSIFIERS = ("classifier", "head", "distillation_head", "output")
HEADS = (*CLASSIFIERS, "pooler", "transform", "transform_norm", "output_bias", "next_sentence", "representation")

M = TypeVar("M", bound=nn.Module)


def adapt(model: M, **settings: Any) -> tuple[M, list[str]]:
    """The same network with other settings of its configuration, and the names of the tensors that are new.

    head, labels  What tells labels apart is kept where both stay the same, else new. Other parts of a head are kept
                  where both heads have them. A ViT's layer below its head, `representation`, belongs to pretraining
                  and goes with the old head (Dosovitskiy 2020, section 3.2), unless the settings name it
    vocab         larger: tokens are added, whose rows of the embedding, and biases of the output, are new
    image_size    of a ViT: its positions are resized to the new grid (there, too)
    others        leave the shapes of weights as they are (rates of dropout, ...). Raises UserError where they do not.
    """
    old: Any = model.config
    if isinstance(model, ViT) and settings.get("labels", old.labels) != old.labels:
        settings = {"representation": None, **settings}
    config = replace(old, **settings)
    adapted = build(config)
    weights, own = model.state_dict(), adapted.state_dict()
    relabelled = any(getattr(config, name, None) != getattr(old, name, None) for name in ("head", "labels"))
    if relabelled:
        weights = {name: tensor for name, tensor in weights.items() if _part(name) not in CLASSIFIERS}
    if (added := getattr(config, "vocab", 0) - getattr(old, "vocab", 0)) > 0:
        for name in {"embedding.weight", "output_bias"} & {*weights} & {*own}:
            weights[name] = torch.cat([weights[name], own[name][-added:].to(weights[name])])
    if isinstance(model, ViT):
        if config.tokens - math.prod(config.grid) == old.tokens - math.prod(old.grid):
            # as DINOv2's own code does it: smoothed for the models with registers, not for those before them
            smooth = bool(config.registers)
            weights["positions.table"] = resize(weights["positions.table"], old.grid, config.grid, antialias=smooth)
        for name in own if relabelled else ():  # new heads begin at zero, as in the paper
            if _part(name) in CLASSIFIERS:
                own[name] = torch.zeros_like(own[name])
    lost = [name for name in weights if name not in own and _part(name) not in HEADS]
    weights = {name: tensor for name, tensor in weights.items() if name in own}
    if changed := lost + [name for name, tensor in weights.items() if tensor.shape != own[name].shape]:
        others = ", ".join(sorted(set(settings) - {"head", "labels"})) or "these settings"
        raise UserError(f"{others} would change the shapes of {', '.join(changed[:5])}")
    adapted.load_state_dict({**own, **weights})
    adapted.to(next(model.parameters()).device).train(model.training)
    return adapted, [name for name in own if name not in weights]


def _part(name: str) -> str:
    return name.partition(".")[0]
