"""Attention rollout: the product of the attention maps of all layers, each mixed with the residual connection.

A_l = 1/2 * mean over heads of map_l + 1/2 * I,   rollout = A_L ... A_2 A_1

The values are the row of the token from which the model predicts. If its head reads several tokens, the values are a
mean of their rows. Rollout does not depend on the target. Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in
Transformers", section 3.
"""

from __future__ import annotations

from manyheads.analysis.explanations.attention import attention_gradients, of_parts
from manyheads.analysis.explanations.gradients import Attribution, Score
from manyheads.analysis.heads import statistics


def rollout(score: Score) -> Attribution:
    """Return the attention rollout of each token, or of each image patch."""
    maps, _, readers = attention_gradients(score)
    return of_parts(score, readers @ statistics.rollout(maps)[0])
