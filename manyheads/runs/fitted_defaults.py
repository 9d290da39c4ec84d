"""Training settings that follow from the amount of data, unless the user sets them: epochs, warm-up and validations."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from manyheads.training.config import BUDGETS, TrainingConfig
from manyheads.training.run_log import FRACTIONS
from manyheads.training.schedules import run_length, steps_per_epoch

logger = logging.getLogger(__name__)

# A run in epochs on the user's data has at least this number of steps. Mosbach 2021 (section 6) recommends more epochs
# on small data, too.
MIN_STEPS = 200
# A run with fewer steps per epoch than this, whose number of epochs was raised, validates every 10 steps instead of
# after each epoch.
MIN_INTERVAL = 10
MAX_WARMUP = 0.2  # A warm-up that takes a larger fraction of the run is shortened to `FITTED_WARMUP`.
FITTED_WARMUP = 0.1
_FITTED = ("warmup", "epochs", "validate_every", "learning_rate")


def fit_to_data(
    training: TrainingConfig, given: Collection[str], batches: Callable[[], int], *, own_data: bool
) -> TrainingConfig:
    """Return the training configuration adapted to the amount of data. Settings of the user do not change.

    Changes on all data:
    - `warmup` becomes a tenth of the run if the recipe's warm-up takes more than a fifth of the run.

    Changes on the user's data:
    - `epochs` is raised until the run has `MIN_STEPS` steps.
    - `validate_every` becomes None (once per epoch) if the run has no limit in steps, or if the recipe's interval is
      longer than half of the run. It becomes `MIN_INTERVAL` if `epochs` was raised and an epoch has fewer steps.

    given     dotted keys that the user has set
    batches   function that returns the number of batches per epoch
    own_data  True if the user gave data to a recipe that is not made for a certain data set
    """
    free = {name for name in _FITTED if f"training.{name}" not in given}
    budgeted = any(f"training.{name}" in given for name in BUDGETS)
    per_epoch = None if training.epochs is None else steps_per_epoch(training, batches())
    if own_data and not budgeted and training.steps is None and per_epoch is not None:
        epochs = math.ceil(MIN_STEPS / per_epoch)
        if epochs > (training.epochs or 0):
            logger.info(
                f"epochs: using {epochs}, for a run of at least {MIN_STEPS} steps, instead of the recipe's "
                f"{training.epochs}; to choose, set training.epochs"
            )
            training = replace(training, epochs=epochs)
            if "validate_every" in free:
                free.remove("validate_every")
                training = replace(training, validate_every=MIN_INTERVAL if per_epoch < MIN_INTERVAL else None)
    steps, every = run_length(training, per_epoch or 0), training.validate_every
    too_rare = every is not None and (training.steps is None or (steps is not None and 2 * every > steps))
    if own_data and "validate_every" in free and too_rare:
        training = replace(training, validate_every=None)
    return _with_fitted_warmup(training, free, steps)


def _with_fitted_warmup(training: TrainingConfig, free: Collection[str], steps: int | None) -> TrainingConfig:
    if "warmup" not in free or steps is None or training.warmup <= MAX_WARMUP * steps:
        return training
    warmup = math.ceil(FITTED_WARMUP * steps)
    logger.info(f"warm-up: using {warmup:,} of {steps:,} steps instead of the recipe's {training.warmup:,}")
    if training.schedule == "noam" and "learning_rate" in free:
        # The peak of the schedule noam is proportional to warmup^-0.5. Keep the peak of the recipe.
        training = replace(training, learning_rate=training.learning_rate * math.sqrt(warmup / training.warmup))
    return replace(training, warmup=warmup)


def keeping_best(training: TrainingConfig, metrics: Iterable[str]) -> TrainingConfig:
    """Return a training configuration that keeps the best weights by validation, unless it averages weights.

    metrics  names of the validation metrics. The first metric from 0 to 1 selects the best weights; without such a
             metric, the loss does
    """
    if training.metric is not None or training.average > 1 or training.ema is not None:
        return training
    return replace(training, metric=next((name for name in metrics if name in FRACTIONS), "loss"))
