"""Diagnosis of training steps whose loss or gradient is NaN or infinite.

Finds the first tensor with such values, then skips the step or stops the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from manyheads.training.faults import NonFiniteError, batch_arrays
from manyheads.training.gradients import accumulate_gradients
from manyheads.training.prefetching import Group
from manyheads.training.session import TrainingSession
from manyheads.training.state import Counters, seed_step


def diagnose(session: TrainingSession, group: Group, counts: list[int], losses: Sequence[Tensor]) -> str:
    """Return the name of the first tensor with NaN or infinite values, given the gradients and losses of the step.

    Collective: all ranks must call it. With several ranks, the given gradients are averages over the ranks, which do
    not show their origin. So each rank computes its local gradients again.
    """
    if session.ranks.world > 1:
        session.optimizer.zero_grad()
        seed_step(session.config.seed, session.counters.step, session.ranks.rank)
        losses = accumulate_gradients(session, group, counts, local=True).losses
    return _first_bad_tensor(session, group.batches, losses)


def skip_step(counters: Counters, bad_tensor: str, budget: int, gradient_norm: float) -> str:
    """Increment the count of skipped steps and return a warning.

    Raise NonFiniteError if `budget` steps were already skipped.
    """
    message = f"step {counters.step + 1}: not finite (gradient norm {gradient_norm:g}); first bad tensor: {bad_tensor}"
    if counters.skipped == budget:
        used_up = f" the limit of {budget} skipped steps is reached;" * (budget > 0)
        raise NonFiniteError(
            f"{message};{used_up} start again with a smaller learning_rate, a longer warmup or clip; or use --resume "
            f"with training.skip_nonfinite={max(10, 2 * budget)} to skip such steps; the last good checkpoint is kept"
        )
    counters.skipped += 1
    return f"{message}; skipped, {counters.skipped} of {budget} allowed"


def _first_bad_tensor(session: TrainingSession, batches: Sequence[Any], losses: Sequence[Tensor]) -> str:
    """Return the name of the first tensor with NaN or infinite values.

    Searches parameters, inputs, losses and gradients, in the order of their computation.
    """
    model, strategy, ranks = session.model, session.strategy, session.ranks
    suffixes = [f" of micro-batch {index} of {len(batches)}" for index in range(1, len(batches) + 1)]
    if len(batches) == 1:
        suffixes = [""]
    parameters = strategy.full_tensors({n: p.detach() for n, p in model.named_parameters()}, on_all_ranks=True)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    gradients = strategy.full_tensors(gradients, on_all_ranks=True)
    bad_tensors = (
        *(f"parameter {name}" for name, tensor in parameters.items() if _is_bad(tensor)),
        *(f"input {name}{suffix}" for batch, suffix in zip(batches, suffixes, strict=True)
          for name, array in batch_arrays(batch).items() if _is_bad(array)),
        *(f"the loss{suffix}" for loss, suffix in zip(losses, suffixes, strict=True) if _is_bad(loss)),
        *(f"gradient of {name}" for name, tensor in gradients.items() if _is_bad(tensor)),
    )  # fmt: skip
    by_rank = ranks.all_gather(bad_tensors[:1])
    kinds = ("parameter", "input", "the loss", "gradient")
    first = min(((kinds.index(next(k for k in kinds if name.startswith(k))), rank, name)
                 for rank, names in enumerate(by_rank) for name in names), default=None)  # fmt: skip
    if first is None:
        return "the norm of all gradients"
    _, rank, name = first
    return name if ranks.world == 1 or by_rank == [(name,)] * ranks.world else f"{name}, on rank {rank}"


def _is_bad(array: Any) -> bool:
    return not torch.as_tensor(array).isfinite().all()
