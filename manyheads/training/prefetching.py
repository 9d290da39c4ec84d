"""What the steps of a run are made from: micro-batches in groups, prepared ahead in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from manyheads.errors import UserError
from manyheads.training.distributed import DistributedContext
from manyheads.training.task import Task


@dataclass(frozen=True)
class Group:
    """The micro-batches of a step, or this process's rows of each, with epoch and index after them.

    counted  for each, False where this process has no row: it computes one of another's, which does not count
    """

    batches: list[Any]
    counted: list[bool]
    epoch: int
    index: int

    def counts(self, ranks: DistributedContext) -> list[int]:
        """Of all processes: the target tokens, and what else parts of the loss are means over (`Batch.counts`)."""
        own = [
            [count * counted for count in getattr(batch, "counts", (batch.items,))]
            for batch, counted in zip(self.batches, self.counted, strict=True)
        ]
        return [round(total) for total in ranks.total(*map(sum, zip(*own, strict=True)))]


def prefetch(
    task: Task, epoch: int, index: int, accumulate: int, ranks: DistributedContext
) -> Generator[Group, None, None]:
    """The groups from there on, for ever."""
    return _ahead(_groups(task, epoch, index, accumulate, ranks))


def _groups(task: Task, epoch: int, index: int, accumulate: int, ranks: DistributedContext) -> Iterator[Group]:
    """An epoch's last group may be smaller: it is a step of its own, normalised by its own tokens, so that nothing is
    dropped and no step spans two epochs."""
    while True:
        batches = task.batches(epoch)
        if ranks.world > 1 and not hasattr(batches, "part"):
            raise UserError(f"{type(task).__name__} cannot be spread over processes: its batches have no `part`")
        for start in range(index, len(batches), accumulate):
            numbers = range(start, min(start + accumulate, len(batches)))
            after = (epoch, numbers.stop) if numbers.stop < len(batches) else (epoch + 1, 0)
            if ranks.world == 1:
                yield Group([batches[i] for i in numbers], [True] * len(numbers), *after)
            else:
                parts = [batches.part(i, ranks.rank, ranks.world) for i in numbers]  # type: ignore[attr-defined]
                yield Group([batch for batch, _ in parts], [counted for _, counted in parts], *after)
        epoch, index = epoch + 1, 0


def _ahead(items: Iterator[Group]) -> Generator[Group, None, None]:
    """The items of an endless iterator, which runs in a thread, two ahead."""
    pool = ThreadPoolExecutor(1)
    try:
        pending = deque(pool.submit(next, items) for _ in range(2))
        while True:
            pending.append(pool.submit(next, items))
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
