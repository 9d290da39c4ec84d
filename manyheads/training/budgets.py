"""Decisions of the training loop from its settings and counters: when to validate, and when to stop."""

from __future__ import annotations

from manyheads.training.config import TrainingConfig
from manyheads.training.state import Counters


def validation_due(config: TrainingConfig, counters: Counters) -> bool:
    """Return True if a validation is due and the current weights have not been validated."""
    if counters.validated >= counters.step:
        return False
    every = config.validate_every
    return counters.index == 0 if every is None else counters.step % every == 0


def kept_model_due(config: TrainingConfig, counters: Counters) -> bool:
    """Return True if the model of this epoch is to be saved under `kept/`."""
    return config.keep_every is not None and not counters.index and counters.epoch % config.keep_every == 0


def snapshot_due(config: TrainingConfig, counters: Counters) -> bool:
    """Return True if the weights of this step are to be part of the final mean."""
    return config.average > 1 and counters.step % (config.average_every or config.checkpoint_every) == 0


def finished_fraction(config: TrainingConfig, counters: Counters, batches: int) -> float:
    """Return the finished fraction of the run, by the budget that is closest to its end.

    batches  number of micro-batches in an epoch
    """
    done = (
        (counters.step, config.steps),
        (counters.epoch + counters.index / batches, config.epochs),
        (counters.seconds / 60, config.minutes),
    )
    return min(1.0, max(amount / budget for amount, budget in done if budget is not None))


def reached_end(config: TrainingConfig, counters: Counters) -> str | None:
    """Return the reason why the run is finished, or None if it is not."""
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
