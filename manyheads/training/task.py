"""What the loop asks for: a task with batches and a loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn


class Batch(Protocol):
    @property
    def tokens(self) -> int:
        """Number of target tokens (or items) the loss is summed over, known before the forward pass.

        Where the loss has parts that are means over something else, `counts` are the numbers of all, this one first.
        """
        ...


class Task(Protocol):
    @property
    def model(self) -> nn.Module: ...

    @property
    def unit(self) -> str:
        """What `Batch.tokens` counts, as progress shows it: "tokens", "images", "texts", ..."""
        ...

    def batches(self, epoch: int) -> Sequence[Any]:
        """The `Batch`es of an epoch, collated when indexed.

        Their order depends on seed and epoch alone. They are indexed from a background thread, so collation must not
        draw from the global random generators: that would make the run irreproducible.

        To be spread over processes, they have `part(index, rank, world)` (`data/batching.py`).
        """
        ...

    def loss(self, batch: Any) -> Tensor:
        """0-dim float tensor: the sum (not the mean) over the batch's target tokens. Or (K,), where the batch has
        `counts`: the sums of the parts, whose means will be added.

        A task that tells classes leaves beside it, as `right`, how many of the batch it has told right: a 0-dim tensor,
        measured while it trains, with dropout and before the step, as Keras does.
        """
        ...

    def validate(self) -> dict[str, float]:
        """Metrics on the validation data; called in eval mode, without gradients, outside autocast."""
        ...

    def save(self, directory: Path) -> str:
        """Write the model directory with the present weights; the model type that it is saved as."""
        ...
