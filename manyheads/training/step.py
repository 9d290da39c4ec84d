"""Training step: accumulates the gradients of an effective batch, and updates the weights if all gradients are finite.

If the loss or a gradient is NaN or infinite, the first such tensor is reported, and the step is skipped or the run
stops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from manyheads.core.block import trainable_stacks
from manyheads.errors import UserError, is_out_of_memory
from manyheads.training.distributed import DistributedContext
from manyheads.training.objective import Batch, Loss
from manyheads.training.prefetching import Group, batch_arrays
from manyheads.training.session import TrainingSession
from manyheads.training.state import Counters, by_mesh, seed_step, update_ema


class NonFiniteError(UserError):
    """Error for a loss or gradient that is NaN or infinite."""


class BatchTooLargeError(UserError):
    """Error for a training step that needs more memory than is available."""


class StepResult(NamedTuple):
    """Result of a training step over all ranks.

    targets        number of targets in the effective batch
    has_classes    False if the objective does not count correct predictions
    gradient_norm  norm of the gradient before clipping
    skipped        None, or the reason why the weights were not updated
    """

    targets: int
    has_classes: bool
    gradient_norm: float
    skipped: str | None = None


def train_step(session: TrainingSession, group: Group) -> StepResult:
    """Train on an effective batch, and add its targets and its loss to the counters.

    If the loss or the gradient is not finite, no weight changes, and `diagnose` finds the first such tensor.
    """
    config, counters, ranks, model = session.config, session.counters, session.ranks, session.model
    counts = group.counts(session.data_ranks)
    if ranks.world > 1:
        seed_step(config.seed, counters.step, session.data_ranks.rank)
    buffers = [buffer.clone() for buffer in model.buffers()] if config.skip_nonfinite else []
    sums = accumulate_gradients(session, group, counts)
    totals = session.data_ranks.all_reduce_sum(sums.totals)
    total_norm = session.strategy.total_norm([p.grad for p in session.parameters if p.grad is not None])
    # Only this line of a step makes the CPU wait for the GPU.
    gradient_norm, loss, correct = torch.stack([total_norm.to(totals), *totals]).tolist()
    skipped = None
    if math.isfinite(gradient_norm + loss):
        _update_weights(session, total_norm)
        counters.window_tokens += counts[0]
        counters.window_loss += loss
        counters.window_correct += correct
    else:
        bad_tensor = diagnose(session, group, counts, sums.losses)
        skipped = skip_step(counters, bad_tensor, config.skip_nonfinite, gradient_norm)
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            # A skipped step must not change the statistics of batch normalization, which the forward pass has updated.
            buffer.copy_(before)
    session.optimizer.zero_grad()
    counters.step += 1
    counters.epoch, counters.index = group.epoch, group.index
    counters.tokens += counts[0]
    return StepResult(counts[0], sums.has_classes, gradient_norm, skipped)


def _update_weights(session: TrainingSession, total_norm: Tensor) -> None:
    config, step = session.config, session.counters.step
    if config.clip is not None:
        for parameters in by_mesh(session.parameters):
            clip_grads_with_norm_(parameters, config.clip, total_norm)
    for parameter_group in session.optimizer.param_groups:
        parameter_group["lr"] = parameter_group["rate"] * session.learning_rate(step + 1)
    session.optimizer.step()
    if config.ema is not None:
        update_ema(session.ema_weights, session.model, min(config.ema, (1 + step) / (10 + step)))


class LossSums(NamedTuple):
    """Losses of the micro-batches of one step on this rank. The gradients of these losses are stored in the parameters.

    losses       loss of each micro-batch without gradient, scaled by `Loss.scaled`
    totals       sum of the losses, and number of correctly predicted targets, (2,)
    has_classes  False if the objective does not count correct predictions
    """

    losses: list[Tensor]
    totals: Tensor
    has_classes: bool


def accumulate_gradients(session: TrainingSession, group: Group, counts: list[int], *, local: bool = False) -> LossSums:
    """Accumulate the gradients of the micro-batches of one step, normalized by the number of targets on all ranks.

    counts  number of targets of the whole effective batch (`Group.counts`)
    local   if True, do not average the gradients over the ranks. It has no effect on a sharded model
    """
    device = session.parameters[0].device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    losses, totals, has_classes = [], torch.zeros(2, dtype=dtype, device=device), False
    for batch, counted in zip(group.batches, group.counted, strict=True):
        last = batch is group.batches[-1] and not local
        with (
            reraise_oom(session.counters.step + 1, batch, session.model, session.ranks),
            session.strategy.accumulation(last=last),
        ):
            with session.compute.autocast():
                parts: Loss = session.strategy.compute(session.objective.loss, batch, counted=counted)
                loss = parts.scaled(counts)
            # DDP and FSDP average the gradients of all ranks. The factor `world`, the number of ranks, turns this mean
            # into a sum. A rank without rows contributes zero gradients.
            ((loss if counted else 0.0 * loss) / (counts[0] / session.data_ranks.world)).backward()
        assert parts.count == batch.items, "the loss must be a sum over the targets of its batch"
        losses.append(loss.detach())
        has_classes = parts.correct is not None
        if counted:
            totals[0] += losses[-1]
            totals[1] += parts.correct if parts.correct is not None else 0
    return LossSums(losses, totals, has_classes)


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
        # Gradient checkpointing would save memory, but only a stack of blocks supports it.
        can_checkpoint = any(not stack.checkpointing for stack in trainable_stacks(model))
        raise BatchTooLargeError(
            f"step {step}: out of memory{where} with a batch of {shapes}: "
            f"{'use --resume with training.checkpointing=true, or ' * can_checkpoint}start again with smaller batches "
            "(batch_tokens, batch_items or rows) and a larger training.accumulate; the last checkpoint is kept"
        ) from error


def diagnose(session: TrainingSession, group: Group, counts: list[int], losses: Sequence[Tensor]) -> str:
    """Return the name of the first tensor with NaN or infinite values in a step.

    The gradients of the model are averages over the ranks, which do not show on which rank the first such value
    occurred. With several ranks, each rank therefore computes its local gradients again. Collective: all ranks must
    call it.

    losses  loss of each micro-batch
    """
    if session.ranks.world > 1:
        session.optimizer.zero_grad()
        seed_step(session.config.seed, session.counters.step, session.data_ranks.rank)
        losses = accumulate_gradients(session, group, counts, local=True).losses
    return _first_bad_tensor(session, group.batches, losses)


def skip_step(counters: Counters, bad_tensor: str, budget: int, gradient_norm: float) -> str:
    """Increment the number of skipped steps and return a warning.

    bad_tensor     name of the first tensor with NaN or infinite values
    budget         maximum number of skipped steps
    gradient_norm  norm of the gradient, for the warning

    Raises NonFiniteError if `budget` steps were already skipped.
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


def _first_bad_tensor(session: TrainingSession, batches: Sequence[Batch], losses: Sequence[Tensor]) -> str:
    """Return the name of the first tensor with NaN or infinite values, in the order of their computation.

    The function searches parameters, then the inputs, losses and gradients of the micro-batches.
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


def _is_bad(array: object) -> bool:
    return not torch.as_tensor(array).isfinite().all()
