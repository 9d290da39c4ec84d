"""Relevance: attention maps weighted by their gradients, accumulated over the layers.

A_l = mean over heads of max(0, map_l * d score / d map_l),   R <- R + A_l R,   starting with R = I

The values are the row of R - I of the token from which the model predicts: the relevance that it receives through
attention. If the head of the model reads several tokens, the values are a mean of their rows.

Source: Chefer 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
Transformers", equations 5 and 6, for self-attention.
"""

from __future__ import annotations

import torch

from manyheads.analysis.explanations.attention import attention_gradients, of_parts
from manyheads.analysis.explanations.gradients import Attribution, Score


def relevance(score: Score) -> Attribution:
    """Return the relevance of each token, or of each image patch."""
    maps, slopes, readers = attention_gradients(score)
    same = torch.eye(maps[0].shape[-1]).to(maps[0])
    total = same
    for weights, slope in zip(maps, slopes, strict=True):
        total = total + (weights * slope).relu().mean((0, 1)) @ total
    return of_parts(score, readers @ (total - same))
