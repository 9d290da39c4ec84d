"""Activation patching: the effect of single activations of one run on the prediction of another (Wang 2022, Meng 2022).

The model runs on the corrupt input, with one activation replaced by its value for the clean input. The effect is the
difference of two logits, normalized: 0 as for the corrupt input, 1 as for the clean one. `attribution_patching.py`
approximates all effects by one backward pass (Nanda 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from manyheads.analysis.attribution_patching import attribution_patching
from manyheads.analysis.contrast import PLACES, RESIDUAL, Activations, Contrast, stack_of
from manyheads.analysis.heat_maps import HeatMaps, Panel
from manyheads.analysis.readout import Readout
from manyheads.core.block import starting_at
from manyheads.core.editing import Edit, edit
from manyheads.core.runtime import eval_mode
from manyheads.core.tap import Place
from manyheads.files import JsonObject

MAX_TOKENS = 2048  # maximum number of tokens in a batch of patched inputs


@dataclass(frozen=True, repr=False)
class Patching(HeatMaps):
    """Effects of patching: residual stream, attention and feed-forward outputs by layer and position, heads by layer.

    clean, corrupt  measured difference of logits for the two inputs
    attribution     heat maps of the approximation by gradients (attribution patching)
    """

    heading: ClassVar = "Patching"

    clean: float
    corrupt: float
    attribution: tuple[Panel, ...]

    @property
    def correlations(self) -> dict[str, float]:
        """Correlation of the effects with their approximation, by heat map; NaN if all values of one are equal."""
        pairs = zip(self.panels, self.attribution, strict=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            return {a.title: float(np.corrcoef(a.values.ravel(), b.values.ravel())[0, 1]) for a, b in pairs}

    def document(self) -> JsonObject:
        """Return all heat maps, and the correlations with the approximation, as JSON data."""
        correlations = {title: None if np.isnan(value) else value for title, value in self.correlations.items()}
        approximation = HeatMaps(self.model, self.title, self.unit, self.attribution).document()["maps"]
        values = {"clean": self.clean, "corrupt": self.corrupt, "correlations": correlations}
        return {**super().document(), **values, "attribution": approximation}


def patch(clean: Readout, corrupt: Readout, target: str | None = None, against: str | None = None) -> Patching:
    """Return the effects of patching single activations of the clean input into the run on the corrupt input.

    The arguments are those of `Contrast.of`, which lists the errors.
    """
    contrast = Contrast.of(clean, corrupt, target, against)
    title = f"{contrast.difference.name(clean)}; clean: {clean.title}; corrupt: {corrupt.title}"
    return Patching(
        clean.source, title, "effect (0 corrupt, 1 clean)", patching(contrast), contrast.clean_value,
        contrast.corrupt_value, attribution_patching(contrast),
    )  # fmt: skip


@torch.no_grad()
def patching(contrast: Contrast) -> tuple[Panel, ...]:
    """Return the effects of all patches. The layers below a patch are computed once.

    The heat map of the residual stream has a row for the embeddings, and one for the output of each layer.
    """
    name, _ = stack_of(contrast.clean)
    clean, corrupt = Activations.of(contrast.clean), Activations.of(contrast.corrupt)
    states = [*corrupt[RESIDUAL].values()]  # input of each layer, and the output of the last
    panels = []
    for title, layers in clean.items():
        effects = []
        for first, (layer, activation) in enumerate(layers.items()):
            patched = name if title == RESIDUAL else layer
            effects.append(_effects(contrast, first, states[first], PLACES[title], patched, activation))
        panels.append(contrast.panel(title, effects))
    return tuple(panels)


def _effects(contrast: Contrast, first: int, state: Tensor, place: Place, layer: str, new: Tensor) -> Tensor:
    """Return the effect of each position (T,), or of each head (H,), of one activation `new` of the clean run.

    first, state  index of the first block that runs, and its input (1, T, D) in the corrupt run
    """
    effects = []
    for rows in torch.arange(new.shape[1]).split(max(1, MAX_TOKENS // state.shape[1])):
        with run_from(contrast.corrupt, first, state) as change:
            change.replace(place, layer, one_each(new, rows))
            effects.append(contrast.effect(contrast.corrupt.logits(*contrast.corrupt.repeated(len(rows)))))
    return torch.cat(effects)


@contextmanager
def run_from(readout: Readout, first: int, state: Tensor) -> Iterator[Edit]:
    """Start the model at a block while the `with` block runs, and return the edits for further changes.

    first, state  index of the first block that runs, and its input (1, T, D); the number of blocks means the final norm
    """
    name, stack = stack_of(readout)
    with eval_mode(readout.model), starting_at(stack, first), edit(readout.model) as change:
        change.residual(name, state)
        yield change


def one_each(new: Tensor, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Return an edit of a batch: item b gets the part rows[b] of the activations `new`, (1, C, ...), along axis 1."""
    chosen = (torch.arange(new.shape[1]) == rows[:, None]).view(-1, new.shape[1], *[1] * (new.dim() - 2)).to(new.device)
    return lambda activations: torch.where(chosen, new, activations)
