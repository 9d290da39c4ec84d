"""Detectors of attention heads with a known function: induction, previous-token and duplicate-token heads.

    random tokens      k q z b | k q z b
    induction          the second k attends to the token after the first k, which is q: the token that comes next
    previous token     each token attends to the token before it
    duplicate token    the second k attends to the first k

The score of a head is its mean attention to these tokens, from 0 to 1 (Olsson 2022, "Head activation evaluators").
"""

from __future__ import annotations

import torch
from torch import Tensor


def head_scores(map: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Return the scores (H,) of the heads of an attention map (B, H, T, T), by function, for the tokens (B, T).

    The score is a mean over all queries that have such a key, and 0 if no query has one. If a token occurred several
    times before the query, the attention to all of these keys is added.
    """
    count = tokens.shape[1]
    earlier = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)  # (B, Tq, Tk): the key is the same token, and earlier
    targets = {
        "induction": earlier.roll(1, -1),  # the last key is never an earlier token, so nothing wraps around
        "previous token": torch.eye(count, dtype=torch.bool).roll(-1, -1).tril(-1).expand_as(earlier),
        "duplicate token": earlier,
    }
    scores = {}
    for name, target in targets.items():
        attention = (map.cpu() * target[:, None]).sum(-1)  # (B, H, Tq)
        scores[name] = attention.sum((0, 2)) / target.any(-1).sum().clamp(min=1)
    return scores
