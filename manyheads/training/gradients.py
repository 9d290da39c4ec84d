"""Gradients of an effective batch, accumulated over the forward and backward passes of its micro-batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.training.faults import reraise_oom
from manyheads.training.objective import Loss
from manyheads.training.prefetching import Group
from manyheads.training.session import TrainingSession


class LossSums(NamedTuple):
    """Losses of the micro-batches of one step on this rank. The gradients of these losses are stored in the parameters.

    losses       loss of each micro-batch without gradient, scaled by `Loss.scaled`
    window       sums for the next log entry: the loss and the number of correctly predicted targets
    has_classes  False if the objective does not count correct predictions
    """

    losses: list[Tensor]
    window: Tensor
    has_classes: bool


def accumulate_gradients(session: TrainingSession, group: Group, counts: list[int], *, local: bool = False) -> LossSums:
    """Accumulate the gradients of the micro-batches of one step, normalized by the number of targets on all ranks.

    counts  number of targets of the whole effective batch (`Group.counts`)
    local   True: keep the gradients of this rank only, unless the model is sharded
    """
    losses, window, has_classes = [], torch.zeros_like(session.window), False
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
            ((loss if counted else 0.0 * loss) / (counts[0] / session.ranks.world)).backward()
        assert parts.count == batch.items, "the loss must be a sum over the targets of its batch"
        losses.append(loss.detach())
        has_classes = parts.correct is not None
        if counted:
            window[0] += losses[-1]
            window[1] += parts.correct if parts.correct is not None else 0
    return LossSums(losses, window, has_classes)
