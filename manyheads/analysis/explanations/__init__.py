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

from collections.abc import Callable
from dataclasses import replace

import torch

from manyheads.analysis.explanations.attention import has_stack
from manyheads.analysis.explanations.explanation import Explanation
from manyheads.analysis.explanations.grad_cam import grad_cam, has_feature_map
from manyheads.analysis.explanations.gradients import Attribution, Score, reads_vectors
from manyheads.analysis.explanations.input_x_gradient import input_x_gradient
from manyheads.analysis.explanations.integrated_gradients import STEPS, integrated_gradients
from manyheads.analysis.explanations.relevance import relevance
from manyheads.analysis.explanations.rollout import rollout
from manyheads.analysis.readout import Readout
from manyheads.errors import UserError, nearest

__all__ = ["METHODS", "Explanation", "explain"]

# for each method: a function that returns True if the method applies, and the method
METHODS: dict[str, tuple[Callable[[Readout], bool], Callable[[Score], Attribution]]] = {
    "integrated-gradients": (reads_vectors, lambda score: integrated_gradients(score, STEPS)),
    "input-x-gradient": (reads_vectors, input_x_gradient),
    "relevance": (has_stack, relevance),
    "rollout": (has_stack, rollout),
    "grad-cam": (has_feature_map, grad_cam),
}
DEFAULTS_OF_IMAGES = ("relevance", "grad-cam")  # default methods of images, if they apply, in this order


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
    methods = [name for name, (applies, _) in METHODS.items() if applies(readout)]
    if not methods:
        raise UserError(f"{readout.source}: no method of explain applies to a {type(readout.model).__name__}")
    if method is not None and method not in METHODS:
        raise UserError(f"unknown method {method!r}: {nearest(method, METHODS)}")
    preferred = [name for name in DEFAULTS_OF_IMAGES if name in methods and readout.picture is not None]
    method = method or next(iter([*preferred, *methods]))
    if method not in methods:
        raise UserError(f"{method} does not apply to {readout.source}: use {' or '.join(methods)}")
    if steps is not None and method != "integrated-gradients":
        raise UserError(f"steps apply to integrated-gradients, but the method is {method}")
    if any(parameter.is_inference() for parameter in readout.model.parameters()):
        raise UserError(f"{readout.source} was loaded in torch.inference_mode: load it outside, to have gradients")
    with torch.inference_mode(False), torch.enable_grad():
        # Copies of the inputs are ordinary tensors, even if the inputs were created in inference mode.
        readout = replace(readout, inputs=tuple(None if part is None else part.clone() for part in readout.inputs))
        with torch.no_grad():
            logits = readout.logits()
        score = Score(readout, int(logits[0].argmax()) if target is None else readout.names.index(target))
        compute = METHODS[method][1]
        found = integrated_gradients(score, steps) if steps is not None else compute(score)
    text = readout.side if readout.picture is None else None
    return Explanation(
        readout.source, readout.title, method, readout.names.name(score.target), score.probability(logits),
        found.values, text, readout.picture, found.difference,
    )  # fmt: skip
