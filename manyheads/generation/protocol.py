"""What decoding asks of a model, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from manyheads.errors import UserError


class Cache(Protocol):
    """What a model remembers of each row of a batch. `manyheads.core.cache.KVCache` is one."""

    lengths: Tensor  # (B,) positions that each row holds

    def select(self, rows: Tensor) -> None:
        """Keep rows (N,), in that order, repeated where a number is repeated."""


C = TypeVar("C", bound=Cache)
# tokens (B, T), cache of B rows -> logits (B, T, V) of what follows each token; the cache then holds T more positions
Step: TypeAlias = Callable[[Tensor, C], Tensor]


@dataclass(frozen=True)
class Hypothesis:
    """One complete output.

    tokens           ids without start and without end.
    log_probability  natural logarithm, summed over the tokens and the end.
    score            log_probability / length_penalty(len(tokens) + 1, alpha): what hypotheses are ranked by.
    """

    tokens: list[int]
    log_probability: float
    score: float

    @classmethod
    def of(cls, tokens: list[int], log_probability: float, alpha: float) -> Hypothesis:
        return cls(tokens, log_probability, log_probability / length_penalty(len(tokens) + 1, alpha))


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ** alpha, length counting the end (Wu et al. 2016, section 7; Vaswani et al. 2017 use 0.6)."""
    return ((5 + length) / 6) ** alpha


def check_alpha(alpha: float) -> None:
    """Raises UserError for an exponent of the length penalty that is not from 0 to 10."""
    if not 0 <= alpha <= 10:  # nan neither
        raise UserError(f"alpha must be from 0 to 10, got {alpha}")


def without(logits: Tensor, suppress: Sequence[int]) -> Tensor:
    """Logits in float32 or float64, minus infinity for the suppressed ids.

    Those are taken out before the softmax: the others sum to one, as in training, where the padding logit is masked.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if suppress:
        logits = logits.index_fill(-1, torch.tensor([*suppress], device=logits.device), -torch.inf)
    return logits


BLOCK = 64  # numbers in a row whose largest is found at once
FEW = 100_000  # of which `argmax` finds the largest sooner than the calls for blocks take


def block_maxima(scores: Tensor) -> Tensor:
    """(R, N) -> (R, N / BLOCK), the last block being what is left."""
    whole = scores.shape[1] // BLOCK * BLOCK
    maxima = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(dim=2)
    return torch.cat([maxima, scores[:, whole:].amax(1, keepdim=True)], 1) if whole < scores.shape[1] else maxima


# logits (R, V), ids that are never generated, BLOCK -> the logits without these, the largest of each block and the
# logarithm of the sum of their exponentials (R,); what is given may be changed
Reduce: TypeAlias = Callable[[Tensor, Sequence[int], int], tuple[Tensor, Tensor, Tensor]]


def reduced(logits: Tensor, suppress: Sequence[int], block: int = BLOCK) -> tuple[Tensor, Tensor, Tensor]:
    """What a search needs to know of logits: they less their log-sums are log-probabilities."""
    logits = without(logits, suppress)
    return logits, block_maxima(logits), logits.logsumexp(-1)


def in_blocks(scores: Tensor, rows: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """What stands in blocks (...) of rows (...) of scores (R, N), and in which columns: (..., BLOCK); -inf beyond N."""
    columns = blocks[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)
    beyond = columns >= scores.shape[1]
    return scores[rows[..., None], columns.masked_fill(beyond, 0)].masked_fill(beyond, -torch.inf), columns


def largest(scores: Tensor, maxima: Tensor | None = None) -> Tensor:
    """Where each row (R, N) has its largest, of equal ones the first. `argmax` of many is slow on a CPU.

    maxima  (R, blocks), if they are known
    """
    if maxima is None:
        if scores.numel() < FEW:
            return scores.argmax(1)
        maxima = block_maxima(scores)
    values, columns = in_blocks(scores, torch.arange(len(scores), device=scores.device), maxima.argmax(1))
    return columns.gather(1, values.argmax(1, keepdim=True))[:, 0]
