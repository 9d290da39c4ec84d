"""Predictions of several processes: whole batches, each computed by one of them, and the results gathered for all.

A batch is the one that a single process would make, so that what comes out is the same for any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

from manyheads.errors import UserError
from manyheads.training.distributed import DistributedContext, distributed_context, reraise_peer_failure

B = TypeVar("B")
R = TypeVar("R")

ALONE = DistributedContext()


class _Division(NamedTuple):
    """The ranks among which `each` divides its batches; `same_calls`: each computes as many as all others."""

    ranks: DistributedContext
    same_calls: bool = False


UNDIVIDED = _Division(ALONE)

_division = ContextVar("division", default=UNDIVIDED)


class _Refused(NamedTuple):
    """A UserError of one rank: all raise it, and rank 0 reports it."""

    reason: str


@contextmanager
def divided(*, same_calls: bool = False) -> Iterator[None]:
    """Divide the batches of `each` among the ranks within the block. Collective: all ranks make the same calls.

    same_calls  in the last round, ranks without a batch compute one of another rank and drop the result: the blocks of
                a sharded model are gathered from all ranks
    """
    with reraise_peer_failure():
        before = _division.set(_Division(distributed_context(), same_calls))
        try:
            yield
        finally:
            _division.reset(before)


def distributed_map(batches: Sequence[B], run_batch: Callable[[B], R]) -> Iterator[R]:
    """The results of all batches, in their order; in each round every process makes and computes one.

    What `run_batch` returns goes from process to process: tensors on the CPU.
    """
    ranks, same_calls = _division.get()
    for first in range(0, len(batches), ranks.world):
        index = first + ranks.rank
        has_own = index < len(batches)  # in the last round, some ranks have none

        def results(index: int = index, has_own: bool = has_own, first: int = first) -> list[R]:
            if has_own:
                return [run_batch(batches[index])]
            if same_calls:
                run_batch(batches[first])
            return []

        for result in _agreed(ranks, results):
            yield from result


def read_once(chunks: Iterator[R]) -> Iterator[R]:
    """What rank 0 reads from where it can be read but once, for all processes."""
    ranks = _division.get().ranks
    while (chunk := _agreed(ranks, lambda: next(chunks, None) if ranks.first else None)[0]) is not None:
        yield chunk


def _agreed(ranks: DistributedContext, make: Callable[[], R]) -> list[R]:
    """What each process makes, by rank."""
    if ranks.world == 1:
        return [make()]
    made: R | _Refused
    try:
        made = make()
    except ValueError as error:
        made = _Refused(str(error))
    agreed: list[R] = []
    for each_made in ranks.all_gather(made):
        if isinstance(each_made, _Refused):
            raise UserError(each_made.reason)
        agreed.append(each_made)
    return agreed
