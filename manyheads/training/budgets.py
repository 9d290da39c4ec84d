"""Decisions of the training loop: when to validate, when to save a model, and when to stop.

They depend only on the settings of the run and on its step counters.
"""

from __future__ import annotations

from manyheads.training.config import TrainingConfig
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
    done = (
        (counters.step, config.steps),
        (counters.epoch + counters.index / batches, config.epochs),
        (counters.seconds / 60, config.minutes),
    )
    return min(1.0, max(amount / budget for amount, budget in done if budget is not None))


def reached_end(config: TrainingConfig, counters: Counters) -> str | None:
    """Return the reason for the end of the run (a limit or no improvement), or None if it continues."""
    if config.patience is not None and counters.without_best >= config.patience:
        return f"no better {config.metric} in {_with_unit(config.patience, 'validation')}"
    if config.steps is not None and counters.step >= config.steps:
        return _with_unit(config.steps, "step")
    if config.epochs is not None and counters.epoch >= config.epochs:
        return _with_unit(config.epochs, "epoch")
    if config.minutes is not None and counters.seconds >= config.minutes * 60:
        return _with_unit(config.minutes, "minute")
    return None


def _with_unit(count: float, unit: str) -> str:
    return f"{count:,}".removesuffix(".0") + f" {unit}{'s' * (count != 1)}"
