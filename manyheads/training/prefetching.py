"""Iterators that prepare the micro-batches of the training steps in a background thread, grouped by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads.errors import UserError
from manyheads.training.distributed import DistributedContext
from manyheads.training.objective import Batch, BatchWithParts, DivisibleBatches, Objective

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Micro-batches of one training step. With several ranks, they contain only the rows of this rank.

    batches  micro-batches
    counted  for each micro-batch, False if it has no rows for this rank. The rank then computes rows of another rank,
             and the result is ignored
    epoch    epoch of the micro-batch that follows this group
    index    index of the micro-batch that follows this group
    """

    batches: list[Batch]
    counted: list[bool]
    epoch: int
    index: int

    def counts(self, ranks: DistributedContext) -> list[int]:
        """Return the numbers by which the sums of the loss are divided, summed over all ranks.

        The first is the number of targets. Then follows the number of terms of each additional part of the loss.
        """
        local = [
            [count * counted for count in (batch.counts if isinstance(batch, BatchWithParts) else (batch.items,))]
            for batch, counted in zip(self.batches, self.counted, strict=True)
        ]
        return [round(total) for total in ranks.total(*map(sum, zip(*local, strict=True)))]


def step_groups(
    objective: Objective, epoch: int, index: int, accumulate: int, ranks: DistributedContext
) -> Iterator[Group]:
    """Yield the micro-batches of all following training steps, grouped by step. The iterator never ends.

    The last group of an epoch may have fewer than `accumulate` micro-batches, because no step spans two epochs. No data
    are dropped: a smaller group is a step, too, and its loss is normalized by its number of targets.

    epoch, index  epoch and index of the first micro-batch to yield
    """
    on_gpu = any(parameter.is_cuda for parameter in objective.model.parameters())
    while True:
        batches = objective.batches(epoch)
        if ranks.world > 1 and not isinstance(batches, DivisibleBatches):
            raise UserError(
                f"{type(objective).__name__} does not support several processes: its batches have no `part` method"
            )
        for start in range(index, len(batches), accumulate):
            indices = range(start, min(start + accumulate, len(batches)))
            after = (epoch, indices.stop) if indices.stop < len(batches) else (epoch + 1, 0)
            if ranks.world > 1 and isinstance(batches, DivisibleBatches):
                parts = [batches.part(i, ranks.rank, ranks.world) for i in indices]
            else:
                parts = [(batches[i], True) for i in indices]
            group = [pinned(batch) if on_gpu else batch for batch, _ in parts]
            yield Group(group, [counted for _, counted in parts], *after)
        epoch, index = epoch + 1, 0


@runtime_checkable
class _NamedTuple(Protocol):
    def _asdict(self) -> dict[str, object]: ...


def batch_arrays(batch: object) -> dict[str, Tensor | NDArray[Any]]:
    """Return the tensors and arrays of a batch, by field name.

    A batch is a dataclass, a NamedTuple or an object with attributes.
    """
    if isinstance(batch, _NamedTuple):
        fields = batch._asdict()
    elif is_dataclass(batch):  # It may have slots instead of `__dict__`.
        fields = {field.name: getattr(batch, field.name) for field in dataclass_fields(batch)}
    else:
        fields = {} if isinstance(batch, tuple) else vars(batch)
    return {name: value for name, value in fields.items() if isinstance(value, Tensor | np.ndarray)}


def pinned(batch: T) -> T:
    """Return the batch with its arrays in pinned memory. A GPU copies them from there several times as fast."""
    if not is_dataclass(batch) or isinstance(batch, type):
        return batch
    arrays = batch_arrays(batch)
    tensors = {name: torch.as_tensor(array).pin_memory() for name, array in arrays.items()}
    changed = {name: t if isinstance(arrays[name], Tensor) else t.numpy() for name, t in tensors.items()}
    return replace(batch, **changed)


def prefetch(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items of an endless iterator. The iterator runs in a thread that prepares up to two items ahead."""
    pool = ThreadPoolExecutor(1)
    try:
        pending = deque(pool.submit(next, items) for _ in range(2))
        while True:
            pending.append(pool.submit(next, items))
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
