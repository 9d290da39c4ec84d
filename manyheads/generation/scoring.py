"""Scoring of given target texts: log-probability of each text under the model (forced decoding)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from manyheads.errors import UserError
from manyheads.generation.protocol import C, Hypothesis, Step, check_alpha, suppress_ids


@torch.inference_mode()
def score(
    step: Step[C],
    cache: C,
    targets: Sequence[Sequence[int]],
    *,
    start: int,
    end: int,
    suppress: Sequence[int] = (),
    alpha: float = 0.6,
) -> list[Hypothesis]:
    """Return each target text (ids without start and end) as a hypothesis with its log-probability and score.

    The score is the same as if a search had found the target. One call of `step` reads all tokens at once, so the cache
    must be empty, with a capacity of the longest target + 1. A target with a suppressed id has the log-probability
    -inf. Raises UserError unless there is one target per row of the cache.
    """
    check_alpha(alpha)
    if len(targets) != len(cache.lengths):
        raise UserError(f"expected {len(cache.lengths)} targets, one per row, found {len(targets)}")
    device = cache.lengths.device
    width = max(map(len, targets), default=0) + 1
    # Padding with end tokens has no effect: a decoder is causal, and positions after the first end are excluded from
    # the sum.
    labels = torch.tensor([[*t, *[end] * (width - len(t))] for t in targets], dtype=torch.long, device=device)  # (B, T)
    inputs = labels.roll(1, dims=1)  # input tokens of the decoder, (B, T): the start token, then the target
    inputs[:, 0] = start
    logits = suppress_ids(step(inputs, cache), suppress)  # (B, T, V)
    log_p = logits.gather(-1, labels[..., None])[..., 0] - logits.logsumexp(-1)  # (B, T)
    padding = torch.arange(width, device=device) > torch.tensor([[len(t)] for t in targets], device=device)  # (B, T)
    totals = log_p.masked_fill(padding, 0).sum(dim=1).tolist()
    return [Hypothesis.of([*t], total, alpha) for t, total in zip(targets, totals, strict=True)]
