"""Attention rollout: the product of the attention maps of all layers, each mixed with the residual connection.

A_l = 1/2 * mean over heads of map_l + 1/2 * I,   rollout = A_L ... A_2 A_1

The values are the row of the token from which the model predicts. If its head reads several tokens, the values are a
mean of their rows. Rollout does not depend on the target. Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in
Transformers", section 3.
"""

from __future__ import annotations

from torch import Tensor

from manyheads.analysis.explanations.gradients import Score
from manyheads.analysis.explanations.relevance import attention_gradients
from manyheads.analysis.heads import statistics


def rollout(score: Score) -> Tensor:
    """Return the attention rollout of each token or image patch, (T,)."""
    maps, _, readers = attention_gradients(score)
    return readers @ statistics.rollout(maps)[0]
