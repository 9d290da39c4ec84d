"""Predictions of several processes: whole batches, each computed by one of them, and the results gathered for all.

A batch is the one that a single process would make, so that what comes out is the same for any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from manyheads.errors import UserError
from manyheads.training.ranks import Ranks, here, told_losses

B = TypeVar("B")
R = TypeVar("R")

ALONE = Ranks()

_ranks = ContextVar("ranks", default=ALONE)  # among which `each` divides its batches


class _Refused(NamedTuple):
    """A UserError of one process, for all: they raise it together, and rank 0 tells it."""

    reason: str


@contextmanager
def divided() -> Iterator[None]:
    """Within, all processes of the job come by the same calls of `each`, which divides its batches among them."""
    with told_losses():
        before = _ranks.set(here())
        try:
            yield
        finally:
            _ranks.reset(before)


def each(batches: Sequence[B], compute: Callable[[B], R]) -> Iterator[R]:
    """The results of all batches, in their order; in each round every process makes and computes one.

    What `compute` gives goes from process to process: tensors on the CPU.
    """
    ranks = _ranks.get()
    for first in range(0, len(batches), ranks.world):
        own = range(len(batches))[first + ranks.rank :][:1]  # none for some, in the last round

        def results(own: range = own) -> list[R]:
            return [compute(batches[i]) for i in own]

        for result in _agreed(ranks, results):
            yield from result


def read_once(chunks: Iterator[R]) -> Iterator[R]:
    """What rank 0 reads from where it can be read but once, for all processes."""
    ranks = _ranks.get()
    while (chunk := _agreed(ranks, lambda: next(chunks, None) if ranks.first else None)[0]) is not None:
        yield chunk


def _agreed(ranks: Ranks, make: Callable[[], R]) -> list[R]:
    """What each process makes, by rank."""
    if ranks.world == 1:
        return [make()]
    made: R | _Refused
    try:
        made = make()
    except ValueError as error:
        made = _Refused(str(error))
    agreed: list[R] = []
    for each_made in ranks.gathered(made):
        if isinstance(each_made, _Refused):
            raise UserError(each_made.reason)
        agreed.append(each_made)
    return agreed
