"""The gradients of an effective batch: a forward and a backward pass for each of its micro-batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.training.faults import reraise_oom
from manyheads.training.prefetching import Group
from manyheads.training.session import TrainingSession
from manyheads.training.task import Loss


class Sums(NamedTuple):
    """The losses of a group's micro-batches on this rank, with the gradients in the parameters.

    losses       of each micro-batch, in units of the first part (`Loss.scaled`), without gradients
    window       what they add to the window of the log: the loss, and the correct targets
    has_classes  False if the task does not count correct targets
    """

    losses: list[Tensor]
    window: Tensor
    has_classes: bool


def accumulate_gradients(session: TrainingSession, group: Group, counts: list[int], *, local: bool = False) -> Sums:
    """Add up the gradients of a group in the parameters, as the mean over the targets of all ranks.

    counts  of the whole effective batch (`Group.counts`)
    local   without the gradients of other ranks, unless the model is sharded
    """
    losses, window, has_classes = [], torch.zeros_like(session.window), False
    for batch, counted in zip(group.batches, group.counted, strict=True):
        last = batch is group.batches[-1] and not local
        with (
            reraise_oom(session.counters.step + 1, batch, session.model, session.ranks),
            session.strategy.accumulating(last=last),
        ):
            with session.compute.autocast():
                parts: Loss = session.strategy.compute(session.task.loss, batch, counted=counted)
                loss = parts.scaled(counts)
            # DistributedDataParallel and FSDP take the mean of the ranks' gradients: multiplied by their number it is
            # the sum. A batch that another rank counts takes part in the all-reduce with gradients of zero.
            ((loss if counted else 0.0 * loss) / (counts[0] / session.ranks.world)).backward()
        assert parts.count == batch.items, "a loss is summed over the targets of its batch"
        losses.append(loss.detach())
        has_classes = parts.correct is not None
        if counted:
            window[0] += losses[-1]
            window[1] += parts.correct if parts.correct is not None else 0
    return Sums(losses, window, has_classes)
