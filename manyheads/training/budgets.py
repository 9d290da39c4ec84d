"""Decisions of the training loop: when to validate, when to save a model, and when to stop.

They depend only on the settings of the run and on its step counters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manyheads.errors import UserError
from manyheads.training.config import BUDGETS, TrainingConfig
from manyheads.training.state import Counters


def validation_due(config: TrainingConfig, counters: Counters) -> bool:
    """Return True if a validation is due at this step and has not yet been done for the current weights."""
    if counters.validated >= counters.step:
        return False
    every = config.validate_every
    return counters.index == 0 if every is None else counters.step % every == 0


def kept_model_due(config: TrainingConfig, counters: Counters) -> bool:
    """Return True if a copy of the model must be saved under `kept/` after this epoch."""
    return config.keep_every is not None and not counters.index and counters.epoch % config.keep_every == 0


def snapshot_due(config: TrainingConfig, counters: Counters) -> bool:
    """Return True if the weights of this step must be saved for the mean of several steps, the final weights."""
    return config.average > 1 and counters.step % (config.average_every or config.checkpoint_every) == 0


def finished_fraction(config: TrainingConfig, counters: Counters, batches: int) -> float:
    """Return the finished fraction of the run, from 0 to 1.

    If steps, epochs and minutes are all limited, the limit that is closest counts.

    batches  number of micro-batches in an epoch
    """
    limits = {name: getattr(config, name) for name in BUDGETS}
    return min(1.0, max(done / limits[name] for name, done in spent(counters, batches).items() if limits[name]))


def spent(counters: Counters, batches: int) -> dict[str, float]:
    """Return the steps, epochs and minutes of all sessions, by the name of the limit."""
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
    """Return the reason for the end of the run (a limit or no improvement), or None if it continues."""
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
