"""Steps that cannot be done: what is not finite is named, and so is the batch that the memory does not hold. Imports no
torch by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from manyheads.errors import UserError
from manyheads.training.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from manyheads.training.spread import Spread
    from manyheads.training.state import Counters


class NonFiniteError(UserError):
    """The loss or a gradient is NaN or infinite."""


class BatchTooLargeError(UserError):
    """The memory does not suffice for a step."""


def no_memory(error: Exception) -> bool:
    """Python's, PyTorch's on a GPU, and PyTorch's on a processor, which is a RuntimeError like any other."""
    return type(error).__name__ in ("MemoryError", "OutOfMemoryError") or "can't allocate memory" in str(error)


@contextmanager
def told_memory(step: int, batch: Any, model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """An error of the memory while this batch is computed, as a BatchTooLargeError that describes it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not no_memory(error):
            raise
        shapes = ", ".join(f"{name} {tuple(array.shape)}" for name, array in _arrays(batch).items())
        where = f" of rank {ranks.rank}" if ranks.world > 1 else ""
        from manyheads.core.block import trained_stacks

        sparing = any(not stack.checkpointing for stack in trained_stacks(model))  # not every model has any
        raise BatchTooLargeError(
            f"step {step}: the memory{where} does not suffice for a batch of {shapes}: "
            f"{'--resume with training.checkpointing=true, or ' * sparing}start anew with smaller batches "
            "(batch_tokens, batch_items or rows) and a larger training.accumulate; the last checkpoint is kept"
        ) from error


def _arrays(batch: Any) -> dict[str, Any]:
    """The tensors and arrays of a batch by name."""
    return {
        name: value
        for name, value in getattr(batch, "__dict__", {}).items()
        if hasattr(value, "shape") and hasattr(value, "dtype")
    }


def skipped(found: str, counters: Counters, budget: int, norm: float) -> str:
    """Count a step that is left out, and say so; where the budget is used up, a NonFiniteError."""
    told = f"step {counters.step + 1}: not finite (gradient norm {norm:g}); first bad tensor: {found}"
    if counters.skipped == budget:
        before = f" the budget of {budget} to leave out is used up;" * (budget > 0)
        raise NonFiniteError(
            f"{told};{before} start anew with a smaller learning_rate, a longer warmup or clip, or --resume with "
            f"training.skip_nonfinite={max(10, 2 * budget)} to leave such steps out; the last good checkpoint is kept"
        )
    counters.skipped += 1
    return f"{told}; left out, {counters.skipped} of {budget}"


def first_bad(model: nn.Module, batches: Sequence[Any], losses: Sequence[Tensor], over: Spread, ranks: Ranks) -> str:
    """The first tensor of a step that is not finite, in the order in which they are computed: a parameter, an input,
    the loss, or a gradient; with its rank, where there are several. All ranks ask, and are told the same."""
    import torch

    def bad(array: Any) -> bool:
        return not torch.as_tensor(array).isfinite().all()

    several = len(batches) > 1
    of_batch = [f" of micro-batch {number} of {len(batches)}" * several for number in range(1, len(batches) + 1)]
    parameters = over.whole({n: p.detach() for n, p in model.named_parameters()}, everywhere=True)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    gradients = over.whole(gradients, everywhere=True)
    bad_tensors = (
        *(f"parameter {name}" for name, tensor in parameters.items() if bad(tensor)),
        *(f"input {name}{which}" for batch, which in zip(batches, of_batch, strict=True)
          for name, array in _arrays(batch).items() if bad(array)),
        *(f"the loss{which}" for loss, which in zip(losses, of_batch, strict=True) if bad(loss)),
        *(f"gradient of {name}" for name, tensor in gradients.items() if bad(tensor)),
    )  # fmt: skip
    by_rank = ranks.gathered(bad_tensors[:1])
    kinds = ("parameter", "input", "the loss", "gradient")
    first = min(((kinds.index(next(k for k in kinds if text.startswith(k))), rank, text)
                 for rank, texts in enumerate(by_rank) for text in texts), default=None)  # fmt: skip
    if first is None:
        return "the norm of all gradients"
    _, rank, text = first
    return text if ranks.world == 1 or by_rank == [(text,)] * ranks.world else f"{text}, on rank {rank}"
