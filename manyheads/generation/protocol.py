"""Interface between decoding methods and a model, and the hypotheses (complete outputs) that decoding returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from manyheads.core.logits import BLOCK, block_maxima
from manyheads.errors import UserError


class Cache(Protocol):
    """Interface of a model's cache, such as `manyheads.core.cache.KVCache`.

    A cache has one state for each row of a batch.
    """

    lengths: Tensor  # number of cached positions of each row, (B,)

    def select(self, rows: Tensor) -> None:
        """Keep only the rows with the given indices (N,), in that order; an index may repeat."""


C = TypeVar("C", bound=Cache)
# A function of a model that takes tokens (B, T) and a cache of B rows. It returns the logits (B, T, V) after each token
# and adds T positions to the cache.
Step: TypeAlias = Callable[[Tensor, C], Tensor]


@dataclass(frozen=True)
class Hypothesis:
    """Hypothesis: a complete output sequence of a search.

    tokens           ids without start and end tokens.
    log_probability  natural logarithm of the probability, summed over the tokens and the end token.
    score            log_probability / length_penalty(len(tokens) + 1, alpha); hypotheses are ranked by this score.
    """

    tokens: list[int]
    log_probability: float
    score: float

    @classmethod
    def of(cls, tokens: list[int], log_probability: float, alpha: float) -> Hypothesis:
        return cls(tokens, log_probability, log_probability / length_penalty(len(tokens) + 1, alpha))


def length_penalty(length: int, alpha: float) -> float:
    """Return the length penalty ((5 + length) / 6) ** alpha. The length includes the end token.

    Source: Wu et al. 2016, section 7; Vaswani et al. 2017 use alpha = 0.6.
    """
    return ((5 + length) / 6) ** alpha


def check_alpha(alpha: float) -> None:
    """Raise UserError if the exponent of the length penalty is not from 0 to 10."""
    if not 0 <= alpha <= 10:  # The condition has this form so that it is also true for NaN.
        raise UserError(f"alpha is {alpha}: expected a number from 0 to 10")


MIN_BLOCKED = 100_000  # minimum number of scores in a row for which the search in blocks is faster than `argmax`


def gather_blocks(scores: Tensor, rows: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores in some blocks of columns, and the indices of these columns, (..., BLOCK) each.

    In the last block, columns beyond N have the score minus infinity.

    scores        (R, N)
    rows, blocks  row index and block index of each requested block
    """
    columns = blocks[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)
    outside = columns >= scores.shape[1]
    return scores[rows[..., None], columns.masked_fill(outside, 0)].masked_fill(outside, -torch.inf), columns


def argmax_rows(scores: Tensor, maxima: Tensor | None = None) -> Tensor:
    """Return the column of the maximum in each row of scores (R, N). Of equal values, the first column is returned.

    On a CPU, this function is faster than `argmax`.

    maxima  maximum of each block of scores, (R, blocks), if already computed
    """
    if maxima is None:
        if scores.numel() < MIN_BLOCKED:
            return scores.argmax(1)
        maxima = block_maxima(scores)
    values, columns = gather_blocks(scores, torch.arange(len(scores), device=scores.device), maxima.argmax(1))
    return columns.gather(1, values.argmax(1, keepdim=True))[:, 0]
