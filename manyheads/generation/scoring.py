"""Log-probabilities of given texts under a model (forced decoding), and of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.core.logits import suppress_ids
from manyheads.errors import UserError
from manyheads.generation.protocol import C, Hypothesis, Step, check_alpha


class TokenScore(NamedTuple):
    """Log-probability of a token after the tokens before it, and the likeliest tokens with their log-probabilities."""

    token: int
    log_probability: float
    best: list[tuple[int, float]]


def token_scores(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenScore]:
    """Return the scores of tokens (T,), given the logits (T, V) at their positions.

    top  number of likeliest tokens that each score lists
    """
    scores = logits.float().log_softmax(-1)
    best, ids = scores.topk(top)
    chosen = scores[range(len(tokens)), tokens].tolist()
    ranked = [list(zip(*row, strict=True)) for row in zip(ids.tolist(), best.tolist(), strict=True)]
    return [TokenScore(*row) for row in zip(tokens, chosen, ranked, strict=True)]


@torch.inference_mode()
def prompt_scores(step: Step[C], cache: C, ids: Sequence[int], top: int, *, chunk: int = 128) -> list[TokenScore]:
    """Return the scores of all tokens of a text except the first, which has no probability because nothing precedes it.

    cache  empty key-value cache with one row and a capacity of at least the length of the text
    top    number of likeliest tokens that each score lists
    chunk  number of tokens that the model reads at once, so that the logits need little memory
    """
    scores: list[TokenScore] = []
    for first in range(0, len(ids) - 1, chunk):
        read = ids[first : min(first + chunk, len(ids) - 1)]
        logits = step(torch.tensor([read], device=cache.lengths.device), cache)[0]
        scores += token_scores(logits, ids[first + 1 : first + 1 + len(read)], top)
    return scores


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
