"""Operations on the logits of a decoding step that all searches share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

BLOCK = 64  # number of neighboring logits in a block; the maximum of each block is computed first

# A function of logits (R, V) and suppressed token ids. It returns the logits with minus infinity for suppressed ids,
# the maximum of each block, (R, blocks), and the log-sum-exp of each row, (R,). It may change the logits in place.
Reduce: TypeAlias = Callable[[Tensor, Sequence[int]], tuple[Tensor, Tensor, Tensor]]


def suppress_ids(logits: Tensor, suppress: Sequence[int]) -> Tensor:
    """Return logits in float32 or float64, with minus infinity for the suppressed ids.

    These ids are excluded before the softmax, so that the other probabilities sum to one. Training masks the padding
    logit in the same way.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if suppress:
        logits = logits.index_fill(-1, torch.tensor([*suppress], device=logits.device), -torch.inf)
    return logits


def block_maxima(scores: Tensor) -> Tensor:
    """Return the maximum of each block of `BLOCK` neighboring scores in a row, (R, N) -> (R, N / BLOCK).

    The last block may be shorter.
    """
    whole = scores.shape[1] // BLOCK * BLOCK
    maxima = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(dim=2)
    return torch.cat([maxima, scores[:, whole:].amax(1, keepdim=True)], 1) if whole < scores.shape[1] else maxima


def reduce_logits(logits: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits without suppressed ids, the maxima of their blocks, and the log-sum-exp of each row.

    A search computes log-probabilities from them: logits minus log-sum-exp.
    """
    logits = suppress_ids(logits, suppress)
    return logits, block_maxima(logits), logits.logsumexp(-1)
