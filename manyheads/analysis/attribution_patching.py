"""Attribution patching: approximate effects of all patches from one backward pass (Nanda 2023).

The difference of logits m of the corrupt run is linearized: replacing an activation a by its value in the clean run
changes m by about (a_clean - a_corrupt) . dm/da. One forward pass on each input and one backward pass give all effects.
"""

from __future__ import annotations

import torch

from manyheads.analysis.contrast import Activations, Contrast
from manyheads.analysis.heat_maps import Panel


def attribution_patching(contrast: Contrast) -> tuple[Panel, ...]:
    """Return the approximate effects in the heat maps of `patching`, with the same names and units."""
    clean, corrupt = Activations.of(contrast.clean), Activations.of(contrast.corrupt, gradients=True)
    activations = [activation for layers in corrupt.values() for activation in layers.values()]
    with torch.enable_grad():
        gradients = torch.autograd.grad(contrast.effect(corrupt.logits).sum(), activations)
    gradient_of = dict(zip(map(id, activations), gradients, strict=True))
    panels = []
    for title, layers in corrupt.items():
        products = [(clean[title][name] - old.detach()) * gradient_of[id(old)] for name, old in layers.items()]
        panels.append(contrast.panel(title, [product[0].flatten(1).sum(1) for product in products]))
    return tuple(panels)
