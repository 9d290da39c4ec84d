"""Schedules of a run: the learning rate of each step, the steps that validate, and the end of the run.

Steps are counted from 1. Does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.errors import UserError
from manyheads.training.config import BUDGETS, TrainingConfig

if TYPE_CHECKING:
    from manyheads.training.state import Counters


def noam(step: int, *, width: int, warmup: int, factor: float = 1.0) -> float:
    """Return the learning rate at a step: linear warm-up, then decay with the inverse square root of the step.

    Source: Vaswani 2017, section 5.3.
    """
    return factor * width**-0.5 * min(step**-0.5, step * warmup**-1.5)


def constant(step: int, *, peak: float, warmup: int = 0) -> float:
    """Return the learning rate at a step: linear warm-up to `peak`, then constant."""
    return peak * min(1.0, step / warmup) if warmup else peak


def inverse_sqrt(step: int, *, peak: float, warmup: int) -> float:
    """Return the learning rate at a step: linear warm-up to `peak`, then decay with the inverse square root of steps.

    Unlike a linear or cosine decay, it does not depend on the length of the run.
    """
    return peak * min(step / warmup, math.sqrt(warmup / step))


def linear(step: int, *, peak: float, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Return the learning rate at a step: linear warm-up, then linear decay.

    The rate rises to `peak`, and falls to `floor` * peak at step `total`.

    Source: Devlin 2018, appendix A.2.
    """
    return _decay(step, lambda progress: 1 - progress, peak, total, warmup, floor)


def cosine(step: int, *, peak: float, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Return the learning rate at a step: linear warm-up, then cosine decay.

    The rate rises to `peak`, and falls along half a cosine to `floor` * peak at step `total`.

    Source: Radford 2018, section 4.1.
    """
    return _decay(step, lambda progress: (1 + math.cos(math.pi * progress)) / 2, peak, total, warmup, floor)


def _decay(step: int, shape: Callable[[float], float], peak: float, total: int, warmup: int, floor: float) -> float:
    """Return the learning rate at a step: linear warm-up to the peak, then a decay given by the function `shape`.

    `shape` maps the progress of the decay, from 0 to 1, to a factor that falls from 1 to 0.
    """
    if step < warmup:
        return constant(step, peak=peak, warmup=warmup)
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return peak * (floor + (1 - floor) * shape(progress))


def warmup_warning(config: TrainingConfig, steps_per_epoch: int) -> str | None:
    """Return a warning if the warm-up takes more steps than the run has; otherwise None.

    For the schedule inverse_sqrt there is no warning, because the run may be the first part of a longer run.
    """
    steps = run_length(config, steps_per_epoch)
    if steps is None or config.warmup <= steps or config.schedule == "inverse_sqrt":
        return None
    return (
        f"the warm-up of {config.warmup:,} steps is longer than the run of {steps:,} steps: the learning rate never "
        "reaches its peak; set a smaller training.warmup"
    )


def steps_per_epoch(config: TrainingConfig, batches: int) -> int:
    """Return the number of training steps in an epoch of `batches` micro-batches."""
    return math.ceil(batches / config.accumulate)


def run_length(config: TrainingConfig, steps_per_epoch: int) -> int | None:
    """Return the number of steps of the run by the settings `steps` and `epochs`, whichever limit is reached first.

    Returns None if only `minutes` limits the run. The function assumes that every epoch has the same number of steps as
    the first epoch; the actual number may differ by a few steps.
    """
    budgets = (config.steps, config.epochs and config.epochs * steps_per_epoch)
    return min((steps for steps in budgets if steps is not None), default=None)


def schedule(config: TrainingConfig, steps_per_epoch: int) -> Callable[[int], float]:
    """Return the configured schedule as a function from the step to the learning rate.

    A linear or cosine decay ends at the last step of the run.
    """
    peak, warmup = config.learning_rate, config.warmup
    if config.schedule == "noam":
        assert config.width is not None
        width = config.width
        return lambda step: noam(step, width=width, warmup=warmup, factor=peak)
    if config.schedule == "constant":
        return lambda step: constant(step, peak=peak, warmup=warmup)
    if config.schedule == "inverse_sqrt":
        return lambda step: inverse_sqrt(step, peak=peak, warmup=warmup)
    total = run_length(config, steps_per_epoch)
    assert total is not None, "decaying schedules need steps or epochs"
    shape = linear if config.schedule == "linear" else cosine
    return lambda step: shape(step, peak=peak, total=total, warmup=warmup, floor=config.floor)


def validation_due(config: TrainingConfig, counters: Counters) -> bool:
    """Return True if a validation is due at this step and has not yet been done for the current weights."""
    if counters.validated >= counters.step:
        return False
    every = config.validate_every
    return counters.index == 0 if every is None else counters.step % every == 0


def finished_fraction(config: TrainingConfig, counters: Counters, batches: int) -> float:
    """Return the finished fraction of the run, from 0 to 1.

    If several of steps, epochs and minutes are limited, the largest finished fraction counts.

    batches  number of micro-batches in an epoch
    """
    limits = (config.steps, config.epochs, config.minutes)
    done = zip(spent(counters, batches).values(), limits, strict=True)
    return min(1.0, max(amount / limit for amount, limit in done if limit))


def spent(counters: Counters, batches: int) -> dict[str, float]:
    """Return the steps, epochs and minutes that all sessions of a run have used, by the names of these limits."""
    epochs = counters.epoch + counters.index / batches
    return dict(zip(BUDGETS, (counters.step, epochs, counters.seconds / 60), strict=True))


def refuse_exceeded(out: Path, limits: Mapping[str, float | None], done: Mapping[str, float]) -> None:
    """Raise UserError if a limit of the resumed run in `out` is lower than the training so far.

    limits  limits that the user has changed, by name
    done    steps, epochs and minutes so far, as `spent` returns them
    """
    for name, amount in done.items():
        limit = limits.get(name)
        if limit is not None and limit < amount:
            trained = with_unit(round(amount, 1), name.removesuffix("s"))
            raise UserError(f"training.{name} is {limit:,}: {out} has already trained for {trained}")


def reached_end(config: TrainingConfig, counters: Counters) -> str | None:
    """Return the reason for which the run ends (a limit, or no improvement), or None if the run continues."""
    if config.patience is not None and counters.without_best >= config.patience:
        return f"no better {config.metric} in {with_unit(config.patience, 'validation')}"
    if config.steps is not None and counters.step >= config.steps:
        return with_unit(config.steps, "step")
    if config.epochs is not None and counters.epoch >= config.epochs:
        return with_unit(config.epochs, "epoch")
    if config.minutes is not None and counters.seconds >= config.minutes * 60:
        return with_unit(config.minutes, "minute")
    return None


def with_unit(count: float, unit: str) -> str:
    return f"{count:,}".removesuffix(".0") + f" {unit}{'s' * (count != 1)}"
