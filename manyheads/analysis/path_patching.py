"""Path patching: the effect of heads on a prediction along direct paths only (Wang 2022, section 3.1).

The model runs on the corrupt input, with the output of one head, the sender, replaced by its output for the clean
input. All other heads are frozen at their outputs for the corrupt input; feed-forward networks are computed. So the
sender reaches the logits, or the receivers, only through the residual stream and feed-forward networks. For receivers,
a second run replaces their queries, keys or values by those of the first run, and computes everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from manyheads.analysis.contrast import HEADS, RESIDUAL, Activations, Contrast
from manyheads.analysis.heat_maps import HeatMaps
from manyheads.analysis.patching import one_each, run_from
from manyheads.analysis.readout import Readout
from manyheads.core.recording import record
from manyheads.errors import UserError

Input = Literal["queries", "keys", "values"]


@torch.no_grad()
def path_patching(
    clean: Readout, corrupt: Readout, receivers: Sequence[tuple[int, int]] = (), *, into: Input = "queries",
    target: str | None = None, against: str | None = None,
) -> HeatMaps:  # fmt: skip
    """Return the effect of each sender on the prediction through the receivers, or directly, by layer and head.

    receivers  layer and head of each receiver. By default, the logits
    into       input of the receivers that is patched

    The effect of heads in or above the highest layer of a receiver is 0. The other arguments and the errors are those
    of `patch`; raises UserError for a receiver that does not exist.
    """
    contrast = Contrast.of(clean, corrupt, target, against)
    new, old = Activations.of(clean), Activations.of(corrupt)
    layers, states = [*old[HEADS]], [*old[RESIDUAL].values()]
    counts = [output.shape[1] for output in old[HEADS].values()]
    by_layer: dict[int, list[int]] = {}
    for layer, head in receivers:
        if not (0 <= layer < len(layers) and 0 <= head < counts[layer]):
            raise UserError(
                f"receiver {layer, head} does not exist: expected a layer below {len(layers)} and a head below "
                f"{counts[0]}"
            )
        by_layer.setdefault(layer, []).append(head)
    effects = [torch.zeros(count, dtype=torch.double) for count in counts]
    for first in range(max(by_layer, default=len(layers))):
        rows = torch.arange(counts[first])
        inputs = corrupt.repeated(len(rows))
        with run_from(corrupt, first, states[first]) as change:
            for name in layers[first:]:
                change.replace("head_outputs", name, old[HEADS][name])
            change.replace("head_outputs", layers[first], one_each(new[HEADS][layers[first]], rows))
            if not by_layer:
                effects[first] = contrast.effect(corrupt.logits(*inputs))
                continue
            with record(corrupt.model, [layers[layer] for layer in by_layer], of=into) as received:
                corrupt.logits(*inputs)
        with run_from(corrupt, first, states[first]) as change:
            for layer, heads in by_layer.items():
                if layer > first:
                    (call,) = received[layers[layer]]
                    change.replace(into, layers[layer], call[:, heads], heads=heads)
            effects[first] = contrast.effect(corrupt.logits(*inputs))
    shown = ", ".join(f"{layer}-{head}" for layer, head in receivers)
    path = f"through the {into} of {shown}" if receivers else "directly to the logits"
    title = f"{contrast.difference.name(clean)}, {path}; clean: {clean.title}; corrupt: {corrupt.title}"
    return HeatMaps(clean.source, title, "effect (0 corrupt, 1 clean)", (contrast.panel(HEADS, effects),))
