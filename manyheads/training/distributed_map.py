"""Distributed evaluation: each batch is computed by one rank, and every rank gets the results of all batches.

The data are divided into the same batches for any number of ranks, so the results do not depend on this number.
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

SINGLE_PROCESS = DistributedContext()


class _Division(NamedTuple):
    """Division of batches among the ranks in the current `with` block (`divide_batches`).

    same_calls  True if every rank must compute the same number of batches
    """

    ranks: DistributedContext
    same_calls: bool = False


UNDIVIDED = _Division(SINGLE_PROCESS)

_division = ContextVar("division", default=UNDIVIDED)


class _RemoteError(NamedTuple):
    """UserError that occurred on one rank. It is sent to all ranks, so that all of them stop; rank 0 reports it."""

    reason: str


@contextmanager
def divide_batches(ranks: DistributedContext | None = None, *, same_calls: bool = False) -> Iterator[None]:
    """Divide the batches of all `distributed_map` calls in this `with` block among the ranks.

    Collective: all ranks make the same calls.

    ranks       ranks that compute different batches. By default, all ranks of the run
    same_calls  True if every rank must compute the same number of batches. A rank that has no batch left in the last
                round then computes the batch of another rank and drops the result. Sharded models need this, because
                all ranks take part when the weights of a model block are gathered
    """
    with reraise_peer_failure():
        before = _division.set(_Division(ranks or distributed_context(), same_calls))
        try:
            yield
        finally:
            _division.reset(before)


def distributed_map(batches: Sequence[B], run_batch: Callable[[B], R]) -> Iterator[R]:
    """Yield the results of all batches in order. In each round, every rank computes one batch.

    The results are sent between processes, so the function `run_batch` must return tensors on the CPU.
    """
    ranks, same_calls = _division.get()
    for first in range(0, len(batches), ranks.world):
        index = first + ranks.rank
        has_batch = index < len(batches)  # In the last round, some ranks may have no batch.

        def results(index: int = index, has_batch: bool = has_batch, first: int = first) -> list[R]:
            if has_batch:
                return [run_batch(batches[index])]
            if same_calls:
                run_batch(batches[first])
            return []

        for result in _gather_results(ranks, results):
            yield from result


def read_once(chunks: Iterator[R]) -> Iterator[R]:
    """Yield the chunks of data on all ranks, although only rank 0 reads them.

    This supports sources that can be read only once, such as a pipe.
    """
    ranks = _division.get().ranks
    while (chunk := _gather_results(ranks, lambda: next(chunks, None) if ranks.first else None)[0]) is not None:
        yield chunk


def _gather_results(ranks: DistributedContext, make: Callable[[], R]) -> list[R]:
    """Call the function `make` on every rank, and return the list of all results, ordered by rank.

    A UserError of one rank is raised on all ranks. Any other exception is a bug and keeps its type and traceback.
    """
    if ranks.world == 1:
        return [make()]
    result: R | _RemoteError
    try:
        result = make()
    except UserError as error:
        result = _RemoteError(str(error))
    results: list[R] = []
    for value in ranks.all_gather(result):
        if isinstance(value, _RemoteError):
            raise UserError(value.reason)
        results.append(value)
    return results
