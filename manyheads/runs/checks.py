"""Checks of the settings of a new run. A resumed run keeps the settings that it was started with."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.data.readers.splits import SplitData
from manyheads.directory import family_of
from manyheads.errors import UserError
from manyheads.runs.overrides import nearest
from manyheads.runs.recipe import RunConfig
from manyheads.training.config import TrainingConfig
from manyheads.training.record import METRICS
from manyheads.training.tuning import select_trained

logger = logging.getLogger(__name__)

MAX_HELD_OUT = 0.5  # A larger fraction leaves too few items for training.


def check_settings(config: RunConfig, *, resume: bool) -> None:
    """Raise UserError for settings of training and validation that are unknown, exclude each other or are too large.

    resume  True: the settings are those of the resumed run, which were checked when it was started
    """
    training: TrainingConfig = config.training
    if (metric := training.metric) not in (None, *METRICS):
        raise UserError(f"training.metric is {metric!r}: no such metric; {nearest(metric, METRICS)}")
    if resume:
        return
    averaged = {"ema": None} if training.ema is not None else {"average": 1} if training.average > 1 else {}
    for name, off in averaged.items():
        if metric is not None:
            raise UserError(
                f"training.{name} is {getattr(training, name)} and training.metric is {metric!r}: expected only one of "
                "them, because each selects the final weights; add training.metric=none or "
                f"training.{name}={'none' if off is None else off}"
            )
    fraction = vars(config).get("held_out")
    if fraction is not None and fraction > MAX_HELD_OUT:
        raise UserError(f"held_out is {fraction}: expected a fraction of at most {MAX_HELD_OUT}, such as 0.1")


def check_held_out(config: RunConfig, splits: SplitData[Any]) -> None:
    """Raise UserError if the user has set the fraction to hold out, but nothing was held out."""
    if (fraction := vars(config).get("held_out")) is not None and not splits.held_out:
        raise UserError(
            f"held_out is {fraction}: no effect, because there are validation data; omit it, or give the "
            "training file alone: data=FILE"
        )


def check_selection(model: Model[Config], training: TrainingConfig, *, new: bool = False) -> None:
    """Raise UserError if the settings that select the trained weights do not fit the model.

    new  True: no weights of the model come from another model
    """
    select_trained(model, training)
    if training.lora_rank is not None and ((kind := family_of(model)[0]).own or new):
        hint = ", with new weights. Start from a trained model: --init MODEL, without scratch" * new
        raise UserError(
            f"training.lora_rank: LoRA needs a model that transformers can open; found {kind.model_type}{hint}"
        )


@contextmanager
def without_info() -> Iterator[None]:
    """Log only warnings and errors during the `with` block."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def log_warnings() -> Iterator[None]:
    """Turn the warnings of libraries into log messages."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        logger.warning(f"{warning.message}")
