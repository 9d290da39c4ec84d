"""Interface of what the training loop trains: batches, a loss, a validation and a method to save the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Better = Literal["higher", "lower"]  # direction in which the values of a metric improve


class LossPart(NamedTuple):
    """Further part of a loss, such as a second objective: the sum of its terms, and their number."""

    total: Tensor
    count: int  # type: ignore[assignment]  # hides the method of tuple


class Loss(NamedTuple):
    """Loss of a batch as sums over its targets. The loop adds the sums over the effective batch, then takes the mean.

    total    0-dim float tensor: the sum (not the mean) over the targets of the batch
    count    number of targets, equal to `Batch.items`
    correct  0-dim tensor: number of targets predicted correctly, measured in training mode and before the update, as
             Keras does; None for an objective without classes
    others   further sums, each with its number of terms, equal to `BatchWithParts.counts[1:]`. The mean of each is
             added to the mean loss.

    This is a tuple because DistributedDataParallel and FSDP find the tensors of a tuple, but not of a dataclass.
    """

    total: Tensor
    count: int  # type: ignore[assignment]  # hides the method of tuple
    correct: Tensor | None = None
    others: tuple[LossPart, ...] = ()

    def scaled(self, counts: Sequence[int]) -> Tensor:
        """Return the sum of all parts of the loss, scaled so that division by counts[0] gives the sum of their means.

        counts  counts of the whole effective batch: the number of targets, then the number of terms of each further
                part
        """
        if not self.others:
            return self.total
        others = [part.total * (counts[0] / max(count, 1)) for part, count in zip(self.others, counts[1:], strict=True)]
        return torch.stack([self.total, *others]).sum()

    @property
    def mean(self) -> Tensor:
        """Return the mean loss per target of this batch, plus the mean of each further part of the loss."""
        return self.scaled([self.count, *(part.count for part in self.others)]) / self.count


class Batch(Protocol):
    @property
    def items(self) -> int:
        """Return the number of targets (tokens or items) over which the loss is summed.

        It is known before the forward pass.
        """
        ...


@runtime_checkable
class BatchWithParts(Batch, Protocol):
    """Batch whose loss has further parts."""

    @property
    def counts(self) -> Sequence[int]:
        """Return the number of targets, then the number of terms of each further part of the loss."""
        ...


@runtime_checkable
class DivisibleBatches(Protocol):
    """Batches of an epoch that several ranks can divide, such as `data.batching.Lazy`."""

    def part(self, index: int, rank: int, world: int) -> tuple[Batch, bool]:
        """Return one rank's rows of a batch, and True.

        If there are none, return some rows of another rank, and False.
        """
        ...


class Objective(Protocol):
    @property
    def model(self) -> nn.Module: ...

    @property
    def unit(self) -> str:
        """Return the name of the unit that `Batch.items` counts, such as "tokens", for the progress line."""
        ...

    @property
    def metrics(self) -> Mapping[str, Better]:
        """Return the names of all metrics that `validate` measures, with the direction in which each improves."""
        ...

    def batches(self, epoch: int) -> Sequence[Any]:
        """Return the batches of an epoch as a sequence. A batch is put together when it is indexed.

        The order depends on seed and epoch alone. Batches are indexed from a background thread. So the sequence must
        not use the global random generators, which would make the run irreproducible.

        To train on several ranks, the sequence needs the method of `DivisibleBatches`.
        """
        ...

    def loss(self, batch: Any) -> Loss:
        """Return the loss of a batch in training mode."""
        ...

    def validate(self) -> dict[str, float]:
        """Return the value of each metric in `metrics` on the validation data.

        The loop calls this method in eval mode, without gradients and outside autocast.
        """
        ...

    def save(self, directory: Path) -> str:
        """Write the model directory with the current weights.

        Return the name of the model type under which it is saved.
        """
        ...
