"""One training step: compute the gradients of an effective batch, and update the weights if they are finite."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from manyheads.training.diagnosis import diagnose, skip_step
from manyheads.training.gradients import accumulate_gradients
from manyheads.training.parallel import full_tensor
from manyheads.training.prefetching import Group
from manyheads.training.session import TrainingSession
from manyheads.training.state import seed_step, update_ema


@dataclass(frozen=True)
class StepResult:
    """Result of a training step over all ranks.

    Tensors are scalars on the model's device; reading their values synchronizes.

    count          number of targets in the effective batch
    loss           sum of the loss over the targets
    correct        number of correctly predicted targets; None for an objective without classes
    gradient_norm  norm of the gradient before clipping
    skipped        None, or the reason why the weights were not updated
    """

    count: int
    loss: Tensor
    correct: Tensor | None
    gradient_norm: Tensor
    skipped: str | None = None

    @property
    def finite(self) -> bool:
        return self.skipped is None


def train_step(session: TrainingSession, group: Group) -> StepResult:
    """Train on an effective batch, and increment the step counter.

    If the loss or the gradient is not finite, no weight changes; see `diagnosis.py`.
    """
    config, counters, ranks, model = session.config, session.counters, session.ranks, session.model
    counts = group.counts(ranks)
    if ranks.world > 1:
        seed_step(config.seed, counters.step, ranks.rank)
    buffers = [buffer.clone() for buffer in model.buffers()] if config.skip_nonfinite else []
    sums = accumulate_gradients(session, group, counts)
    window = ranks.all_reduce_sum(sums.window)
    total_norm = get_total_norm([p.grad for p in session.parameters if p.grad is not None])
    gradient_norm = full_tensor(total_norm)
    skipped = None
    if math.isfinite((gradient_norm + window[0]).item()):  # The CPU waits for the GPU only here in each step.
        _update_weights(session, total_norm)
        session.window += window
        counters.window_tokens += counts[0]
    else:
        bad_tensor = diagnose(session, group, counts, sums.losses)
        skipped = skip_step(counters, bad_tensor, config.skip_nonfinite, gradient_norm.item())
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            # The forward pass has changed the statistics of batch normalization, so they are restored.
            buffer.copy_(before)
    session.optimizer.zero_grad()
    counters.step += 1
    counters.epoch, counters.index = group.epoch, group.index
    counters.tokens += counts[0]
    return StepResult(counts[0], window[0], window[1] if sums.has_classes else None, gradient_norm, skipped)


def _update_weights(session: TrainingSession, total_norm: Tensor) -> None:
    config, step = session.config, session.counters.step
    if config.clip is not None:
        clip_grads_with_norm_(session.parameters, config.clip, total_norm)
    for parameter_group in session.optimizer.param_groups:
        parameter_group["lr"] = parameter_group["rate"] * session.learning_rate(step + 1)
    session.optimizer.step()
    if config.ema is not None:
        update_ema(session.ema_weights, session.model, min(config.ema, (1 + step) / (10 + step)))
