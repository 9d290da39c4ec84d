"""Interface between the training loop and an objective, which has batches, a loss, a validation and a save method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Better = Literal["higher", "lower"]  # direction in which the values of a metric improve


class LossPart(NamedTuple):
    """Additional part of a loss, such as the loss of a second task: the sum of its terms, and their number."""

    total: Tensor
    count: int  # type: ignore[assignment]  # hides the method of tuple


class Loss(NamedTuple):
    """Loss of a batch as sums over its targets. The loop adds the sums over the effective batch, then takes the mean.

    total    sum (not mean) of the loss over the targets of the batch, a 0-dim float tensor
    count    number of targets, equal to `Batch.items`
    correct  number of correctly predicted targets, a 0-dim tensor. Like in Keras, it is measured in training mode and
             before the update. None for an objective without classes
    others   additional parts of the loss. The mean of each part is added to the mean loss. The number of terms of each
             part is equal to its number in `BatchWithParts.counts[1:]`

    This is a tuple because DistributedDataParallel and FSDP find the tensors of a tuple, but not of a dataclass.
    """

    total: Tensor
    count: int  # type: ignore[assignment]  # hides the method of tuple
    correct: Tensor | None = None
    others: tuple[LossPart, ...] = ()

    def scaled(self, counts: Sequence[int]) -> Tensor:
        """Return the sum of all parts of the loss, scaled so that division by counts[0] gives the sum of their means.

        counts  numbers of terms in the whole effective batch: the number of targets, then the number of terms of each
                additional part of the loss
        """
        if not self.others:
            return self.total
        others = [part.total * (counts[0] / max(count, 1)) for part, count in zip(self.others, counts[1:], strict=True)]
        return torch.stack([self.total, *others]).sum()

    @property
    def mean(self) -> Tensor:
        """Return the mean loss per target of this batch, plus the mean of each additional part of the loss."""
        return self.scaled([self.count, *(part.count for part in self.others)]) / self.count


class Batch(Protocol):
    @property
    def items(self) -> int:
        """Return the number of targets (tokens or items) over which the loss is summed.

        The training loop needs this number before the forward pass, so it must not depend on the model's output.
        """
        ...


@runtime_checkable
class BatchWithParts(Batch, Protocol):
    """Batch whose loss has additional parts (`LossPart`)."""

    @property
    def counts(self) -> Sequence[int]:
        """Return the number of targets, then the number of terms of each additional part of the loss."""
        ...


@runtime_checkable
class DivisibleBatches(Protocol):
    """Batches of an epoch that several ranks can divide, such as `data.batching.Lazy`."""

    def part(self, index: int, rank: int, world: int) -> tuple[Batch, bool]:
        """Return the rows of a batch that one rank processes, and True.

        If the batch has no rows for this rank, return some rows of another rank, and False: their loss does not count.
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
        """Return the batches of an epoch as a sequence. A batch is created when the sequence is indexed.

        The order of the batches depends only on the seed and the epoch. A background thread indexes the sequence.
        Therefore the sequence must not use the global random generators, because the run would not be reproducible.

        For training on several ranks, the sequence must have the method `part` of `DivisibleBatches`.
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

        Return the name of the model type under which it is saved; an empty name if no model directory can represent it.
        """
        ...
