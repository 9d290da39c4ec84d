"""Input times gradient: a linear approximation of the effect of each part of the input on the score.

value_i = x_i * d score(x) / d x_i

The input x is the embeddings of a text, or the normalized pixels of an image. For a linear score without a bias, the
values sum to the score. Source: Shrikumar 2016, "Not Just a Black Box"; Simonyan 2013 for the gradient.
"""

from __future__ import annotations

from torch import Tensor

from manyheads.analysis.explanations.gradients import Score, input_gradients


def input_x_gradient(score: Score) -> Tensor:
    """Return the sums over the embedding of each token, (T,), or over the channels of each pixel, (Y, X)."""
    whole, gradient, _ = input_gradients(score)
    return (whole * gradient)[0].sum(0 if score.readout.embedding is None else -1)
