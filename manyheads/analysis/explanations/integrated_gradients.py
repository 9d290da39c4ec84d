"""Integrated gradients: gradients summed along the straight line from a baseline to the input.

value_i = (x_i - baseline_i) * integral over a from 0 to 1 of d score(baseline + a * (x - baseline)) / d x_i

The values sum to the difference between the score of the input and the score of the baseline (completeness). The
integral is computed by Gauss-Legendre quadrature.

Baseline of a text: the embedding of each token is replaced by the embedding of the padding token, or by zero if the
model has no padding token. Special tokens such as [CLS] and [MASK] remain. Baseline of an image: all pixels have the
mean color of the preprocessing, which is zero after normalization.

Source: Sundararajan 2017, "Axiomatic Attribution for Deep Networks".
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.analysis.explanations.gradients import Score, input_gradients
from manyheads.analysis.maps.sides import SPECIAL
from manyheads.analysis.readout import Readout
from manyheads.errors import UserError

STEPS = 50  # default number of points on the line, as in Captum
MAX_STEPS = 10_000
BATCH = 10  # number of points that one forward pass computes


def integrated_gradients(score: Score, steps: int) -> tuple[Tensor, float]:
    """Return the integrated gradients, and the score of the input minus the score of the baseline.

    The gradients are summed over the embedding of each token, (T,), or over the channels of each pixel, (Y, X).

    steps  number of points of the quadrature
    """
    if not 1 <= steps <= MAX_STEPS:
        raise UserError(f"steps is {steps}: expected 1 to {MAX_STEPS:,}")
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    # The last two points are the baseline and the input. They have no weight.
    points = torch.tensor([[*(nodes + 1) / 2, 0.0, 1.0], [*weights / 2, 0.0, 0.0]])
    total, scores = torch.zeros(()), list[float]()
    for part in points.split(BATCH, 1):

        def change(whole: Tensor, part: Tensor = part) -> Tensor:
            at = part[0].to(whole).view(-1, *[1] * (whole.dim() - 1))
            return torch.lerp(baseline(score.readout, whole), whole, at)

        whole, gradient, found = input_gradients(score, part.shape[1], change)
        total = total.to(gradient) + torch.tensordot(part[1].to(gradient), gradient, 1)
        scores += found.tolist()
    values = total * (whole - baseline(score.readout, whole))[0]
    return values.sum(0 if score.readout.embedding is None else -1), scores[-1] - scores[-2]


def baseline(readout: Readout, whole: Tensor) -> Tensor:
    """Return the baseline of an input (B, T, D) or (B, C, Y, X), of the same shape."""
    if readout.side is None or readout.embedding is None:
        return torch.zeros_like(whole)
    pad, weights = readout.model.pad, readout.embedding.weight
    assert isinstance(weights, Tensor)
    empty = weights[pad].detach() if isinstance(pad, int) else torch.zeros_like(whole)
    special = torch.tensor(readout.side.words, device=whole.device) == SPECIAL
    return torch.where(F.pad(special, (0, whole.shape[1] - len(special)))[:, None], whole, empty)
