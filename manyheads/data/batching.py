"""Batches of sentences with similar lengths, with a limit on the number of tokens including padding.

The order of the batches depends only on the seed and the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyheads.errors import UserError

R = TypeVar("R")
B = TypeVar("B")

# Minimum number of batches in each strip of similar target lengths. Values from 2 to 6 differ little; 4 gives the least
# padding (measured on Multi30k).
_MIN_STRIP_BATCHES = 4


def part_of(size: int, rank: int, world: int) -> NDArray[np.int64]:
    """Return the indices of the batch rows that one rank processes.

    If the batch has fewer rows than there are ranks, some ranks get no rows.

        size  number of rows in the whole batch
    """
    return np.arange(rank, size, world)


class Lazy(Sequence[B]):
    """Sequence of the batches of one epoch. A batch is created from its row indices when it is accessed."""

    def __init__(self, rows: Sequence[R], make: Callable[[R], B]) -> None:
        self._rows: Sequence[Any] = rows
        self._make: Callable[[Any], B] = make

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> B:  # type: ignore[override]  # no slices
        return self._make(self._rows[index])

    def part(self, index: int, rank: int, world: int) -> tuple[B, bool]:
        """Return the part of a batch for one rank, and whether the loss of this part counts.

        If the batch has fewer rows than there are ranks, some ranks get its first row and False. They take part in
        collective operations, but their loss does not count.
        """
        rows = self._rows[index]
        local_rows = part_of(len(rows), rank, world)
        return self._make(rows[local_rows if len(local_rows) else [0]]), len(local_rows) > 0


def balanced_rows(labels: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Draw N row indices with replacement, so that the rows of all classes are equally likely.

    labels  (N,) class index of each row
    """
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, 1])))
    share = 1.0 / np.bincount(labels)[labels]
    return random.choice(len(labels), len(labels), p=share / share.sum())


def token_batches(
    source_lengths: ArrayLike,
    target_lengths: ArrayLike,
    budget: int,
    *,
    seed: int,
    epoch: int,
    max_sentences: int | None = None,
) -> list[NDArray[np.int64]]:
    """Return the sentence indices of each batch; each sentence occurs in exactly one batch.

    In every batch, the number of sentences times their maximum length is at most `budget`, for the source as well
    as for the target (target lengths include </s>). Source and target length are two coordinates of a sentence.
    Sentences are sorted along a path through this plane: upward within a strip of similar target lengths, then
    downward within the next strip. Consecutive sentences therefore have similar lengths on both sides. This order
    is cut into batches that are as full as possible. The batches vary between epochs, because ties are broken at
    random and the strips shift. Raises UserError for a sentence longer than the budget.
    """
    source = np.asarray(source_lengths, dtype=np.int64)
    target = np.asarray(target_lengths, dtype=np.int64)
    if source.shape != target.shape:
        raise UserError(f"expected as many source lengths as target lengths, found {len(source):,} and {len(target):,}")
    longest = np.maximum(source, target)
    if len(longest) and longest.max() > budget:
        longest_index = int(longest.argmax())
        raise UserError(
            f"sentence {longest_index + 1:,} has {longest[longest_index]:,} tokens, but a batch takes at most "
            f"{budget:,}; raise batch_tokens"
            " or shorten the sentence"
        )
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
    # Each strip of similar target lengths holds at least _MIN_STRIP_BATCHES batches, so that one batch covers a small
    # range of source lengths.
    tokens = np.bincount(target, weights=longest)  # total number of tokens in all sentences of each target length
    strips, strip_tokens = np.zeros(len(tokens), dtype=np.int64), random.uniform(0, _MIN_STRIP_BATCHES * budget)
    for length in range(1, len(tokens)):
        full = strip_tokens >= _MIN_STRIP_BATCHES * budget
        strips[length] = strips[length - 1] + full
        strip_tokens = tokens[length] + (0 if full else strip_tokens)
    strip = strips[target]
    upwards = (strip + random.integers(2)) % 2 == 0
    snake = np.lexsort((random.random(len(source)), np.where(upwards, source, -source), strip))

    limit = max_sentences or len(snake)
    cuts, start, width = [], 0, 0
    for end, length in enumerate(longest[snake].tolist()):
        width = max(width, length)
        if (end - start + 1) * width > budget or end - start == limit:
            cuts.append(end)
            start, width = end, length
    batches = np.split(snake, cuts) if len(snake) else []
    return [batches[i] for i in random.permutation(len(batches))]


def pad(sequences: Sequence[ArrayLike], value: int) -> NDArray[np.int64]:
    """Return the sequences as rows of one array, padded on the right with `value`, (N, maximum length)."""
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    rows = np.full((len(arrays), max(map(len, arrays), default=0)), value, dtype=np.int64)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return rows
