"""Relevance: attention maps weighted by their gradients, accumulated over the layers.

A_l = mean over heads of max(0, map_l * d score / d map_l),   R <- R + A_l R,   starting with R = I

The values are the row of R - I of the token from which the model predicts: the relevance that it receives through
attention. If the head of the model reads several tokens, the values are a mean of their rows.

Source: Chefer 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
Transformers", equations 5 and 6, for self-attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.analysis.explanations.gradients import Score
from manyheads.analysis.readout import Readout
from manyheads.core.interface import Encodes
from manyheads.core.recording import record


def has_stack(readout: Readout) -> bool:
    """Return True for a model that is one stack of Transformer blocks, such as a ViT, a BERT or a GPT."""
    return isinstance(readout.model, Encodes)


def relevance(score: Score) -> Tensor:
    """Return the relevance of each token or image patch, (T,)."""
    maps, slopes, readers = attention_gradients(score)
    total = same = torch.eye(maps[0].shape[-1]).to(maps[0])
    for weights, slope in zip(maps, slopes, strict=True):
        total = total + (weights * slope).relu().mean((0, 1)) @ total
    return readers @ (total - same)


def attention_gradients(score: Score) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the attention maps of all layers, their gradients, both (1, H, T, T), and the weights (T,) of the readers.

    The weight of a token is the norm of the gradient with respect to its last state, as a fraction of the sum over all
    tokens. If the head reads only one token, such as [CLS], its weight is 1.
    """
    with (
        record(score.readout.model, gradients=True) as maps,
        record(score.readout.model, [-1], of="residual", gradients=True) as last,
    ):
        logits = score.readout.logits()
    weights = [call for calls in maps.values() for call in calls]
    _, (*slopes, of_states) = score.gradients(logits, [*weights, *next(iter(last.values()))])
    strength = of_states[0].norm(dim=-1)
    return [each.detach() for each in weights], slopes, strength / strength.sum()
