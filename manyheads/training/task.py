"""Interface between the training loop and a task: batches, a loss, a validation and a method to save the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Better = Literal["higher", "lower"]  # direction of the better values of a metric


class LossPart(NamedTuple):
    """Additional sum of losses, with the number of its terms."""

    total: Tensor
    count: int  # type: ignore[assignment]  # hides the method of tuple


class Loss(NamedTuple):
    """Loss of a batch as sums. The loop adds them up over the effective batch, then takes the mean.

    total    0-dim float tensor: the sum (not the mean) over the targets of the batch
    count    number of targets, equal to `Batch.items`
    correct  0-dim tensor: number of targets predicted correctly, measured in training mode and before the update, as
             Keras does; None for a task without classes
    others   further sums, each with its count, equal to `Batch.counts[1:]`; the means of all sums are added

    This is a tuple because DistributedDataParallel and FSDP find the tensors of a tuple, but not of a dataclass.
    """

    total: Tensor
    count: int  # type: ignore[assignment]  # hides the method of tuple
    correct: Tensor | None = None
    others: tuple[LossPart, ...] = ()

    def scaled(self, counts: Sequence[int]) -> Tensor:
        """Return the sum of all parts, scaled so that division by counts[0] gives the sum of their means.

        counts  counts of the whole effective batch: the targets, then the terms of each further sum
        """
        if not self.others:
            return self.total
        others = [part.total * (counts[0] / max(count, 1)) for part, count in zip(self.others, counts[1:], strict=True)]
        return torch.stack([self.total, *others]).sum()

    @property
    def mean(self) -> Tensor:
        """Return the mean loss per target of this batch, plus the means of further sums."""
        return self.scaled([self.count, *(part.count for part in self.others)]) / self.count


class Batch(Protocol):
    @property
    def items(self) -> int:
        """Number of targets (tokens or items) in the sum of the loss, known before the forward pass.

        If the loss has further parts, the batch also has `counts`: this number, then the number of terms of each
        further part.
        """
        ...


class Task(Protocol):
    @property
    def model(self) -> nn.Module: ...

    @property
    def unit(self) -> str:
        """Name of the unit that `Batch.items` counts, for the progress line: "tokens", "images", "texts", ..."""
        ...

    @property
    def metrics(self) -> Mapping[str, Better]:
        """Names of all metrics that `validate` returns, each with the direction of its better values."""
        ...

    def batches(self, epoch: int) -> Sequence[Any]:
        """Return the `Batch`es of an epoch, collated when indexed.

        Their order depends on seed and epoch alone. They are indexed from a background thread, so collation must not
        draw from the global random generators: that would make the run irreproducible.

        To train on several ranks, the sequence needs a method `part(index, rank, world)` (`data/batching.py`).
        """
        ...

    def loss(self, batch: Any) -> Loss:
        """Return the loss of a batch in training mode."""
        ...

    def validate(self) -> dict[str, float]:
        """Return the value of each of `metrics` on the validation data.

        The loop calls it in eval mode, without gradients and outside autocast.
        """
        ...

    def save(self, directory: Path) -> str:
        """Write the model directory with the current weights; return the model type under which it is saved."""
        ...
