"""Explanations: the parts of an input that made a model predict a target.

`manyheads.load(MODEL).explain(INPUT)` returns an `Explanation`, with one value for each token of a text, or for each
pixel or patch of an image. There is one module for each method:

    "integrated-gradients"  gradients summed from a baseline to the input (Sundararajan 2017)
    "input-x-gradient"      input times gradient
    "relevance"             gradient-weighted attention (Chefer 2021)
    "rollout"               product of the attention maps (Abnar & Zuidema 2020)
    "grad-cam"              weighted feature map of a convolutional network or a ViT (Selvaraju 2017)

The first two have positive and negative values: parts of the input that speak for and against the target. The default
is "relevance" for a ViT, "grad-cam" for a convolutional network, and "integrated-gradients" for other models.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from manyheads.analysis.explanations.explanation import Explanation
from manyheads.analysis.explanations.grad_cam import grad_cam, has_feature_map
from manyheads.analysis.explanations.gradients import Score, reads_vectors
from manyheads.analysis.explanations.input_x_gradient import input_x_gradient
from manyheads.analysis.explanations.integrated_gradients import STEPS, integrated_gradients
from manyheads.analysis.explanations.relevance import has_stack, relevance
from manyheads.analysis.explanations.rollout import rollout
from manyheads.analysis.heat_maps import Panel
from manyheads.analysis.readout import Readout
from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

__all__ = ["METHODS", "Explanation", "explain"]

INTEGRATED = "integrated-gradients"
TOLERANCE = 0.05  # completeness error, as a fraction of the difference of scores, above which a warning is logged
# for each method: a function that returns True if the method applies, and the method. The first method that applies is
# the default for images.
METHODS: dict[str, tuple[Callable[[Readout], bool], Callable[[Score], Tensor]]] = {
    "relevance": (has_stack, relevance),
    "grad-cam": (has_feature_map, grad_cam),
    INTEGRATED: (reads_vectors, lambda score: integrated_gradients(score, STEPS)[0]),
    "input-x-gradient": (reads_vectors, input_x_gradient),
    "rollout": (has_stack, rollout),
}


def explain(
    readout: Readout, *, target: str | None = None, method: str | None = None, steps: int | None = None
) -> Explanation:
    """Return the contribution of each part of the input to the prediction of the target.

    target  name of a label, or a token. By default, the model's own prediction
    method  name of the method, one of METHODS. By default, see the top of this module
    steps   number of points of integrated gradients. By default, STEPS

    The computation is in float32. Raises UserError for a method that does not apply to the model, and for a target that
    the model does not predict.
    """
    if readout.model._compiled_call_impl is not None or type(readout.model).__module__.startswith("torch._dynamo"):
        raise UserError(f"{readout.source}: the model was compiled with torch.compile: use the plain model")
    if any(parameter.is_inference() for parameter in readout.model.parameters()):
        raise UserError(f"{readout.source} was loaded in torch.inference_mode: load it outside, to have gradients")
    methods = [name for name, (applies, _) in METHODS.items() if applies(readout)]
    if method is None:
        method = next(iter(methods if readout.picture is not None else ()), INTEGRATED)
    if method not in methods:
        hint = f"use {' or '.join(methods)}" if methods else f"no method does, to a {type(readout.model).__name__}"
        raise UserError(f"{method} does not apply to {readout.source}: {hint}")
    if steps is not None and method != INTEGRATED:
        raise UserError(f"steps apply to {INTEGRATED}, but the method is {method}")
    with eval_mode(readout.model), torch.inference_mode(False), torch.enable_grad():
        # Copies of the inputs are ordinary tensors, even if the inputs were created in inference mode.
        readout = replace(readout, inputs=tuple(None if part is None else part.clone() for part in readout.inputs))
        logits = readout.logits().detach()
        index = int(logits[0].argmax()) if target is None else readout.names.index(target)
        score, difference = Score(readout, index), None
        if method == INTEGRATED:
            values, difference = integrated_gradients(score, STEPS if steps is None else steps)
        else:
            values = METHODS[method][1](score)
    if not values.isfinite().all():
        raise UserError(f"{readout.source}: the model computes infinite or NaN values for this input")
    target, side = readout.names.name(index), readout.side
    rows: tuple[str, ...] = (target,)
    columns = () if side is None else side.tokens
    if readout.picture is None:
        values = values[None, : len(columns)]  # without padding after the text
    else:
        if values.dim() == 1 and side is not None and side.grid is not None:
            values = values[-math.prod(side.grid) :].unflatten(0, side.grid)  # without the tokens before the patches
        rows, columns, side = *(tuple(map(str, range(size))) for size in values.shape), None
    panel = Panel(method, rows, columns, values.detach().double().cpu().numpy(), readout.picture)
    found = Explanation(
        readout.source, readout.title, f"for {target!r}", (panel,), method, target,
        readout.probability(logits[0], index), difference, side,
    )  # fmt: skip
    if found.error is not None and difference is not None and found.error > TOLERANCE * abs(difference):
        logger.warning(
            f"the values sum to {found.values.sum():.4g}, but the difference of scores is {difference:.4g}: "
            "raise steps (--steps)"
        )
    return found
