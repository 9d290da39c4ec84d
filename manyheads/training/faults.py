"""Errors of training steps: NaN or infinite loss or gradients, and insufficient memory. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import TYPE_CHECKING

from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.training.distributed import DistributedContext

if TYPE_CHECKING:
    from torch import nn


class NonFiniteError(UserError):
    """Error for a loss or gradient that is NaN or infinite."""


class BatchTooLargeError(UserError):
    """Error for a training step that needs more memory than is available."""


def is_out_of_memory(error: Exception) -> bool:
    """Return True for an out-of-memory error of Python or PyTorch. On a CPU, PyTorch raises a plain RuntimeError."""
    return type(error).__name__ in ("MemoryError", "OutOfMemoryError") or "can't allocate memory" in str(error)


@contextmanager
def reraise_oom(step: int, batch: object, model: nn.Module, ranks: DistributedContext) -> Iterator[None]:
    """Turn an out-of-memory error into a BatchTooLargeError that reports the shapes of the batch."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in batch_arrays(batch).items())
        where = f" of rank {ranks.rank}" if ranks.world > 1 else ""
        from manyheads.core.block import trainable_stacks

        # Gradient checkpointing would save memory, but only a stack of blocks supports it.
        can_checkpoint = any(not stack.checkpointing for stack in trainable_stacks(model))
        raise BatchTooLargeError(
            f"step {step}: out of memory{where} with a batch of {shapes}: "
            f"{'use --resume with training.checkpointing=true, or ' * can_checkpoint}start again with smaller batches "
            "(batch_tokens, batch_items or rows) and a larger training.accumulate; the last checkpoint is kept"
        ) from error


def batch_arrays(batch: object) -> JsonObject:
    """Return the tensors and arrays of a batch, by field name.

    A batch is a dataclass, a NamedTuple or an object with attributes.
    """
    if isinstance(batch, tuple):
        fields = dict(zip(getattr(batch, "_fields", ()), batch, strict=False))
    elif is_dataclass(batch):
        fields = {field.name: getattr(batch, field.name) for field in dataclass_fields(batch)}
    else:
        fields = vars(batch)
    return {name: value for name, value in fields.items() if hasattr(value, "shape") and hasattr(value, "dtype")}
