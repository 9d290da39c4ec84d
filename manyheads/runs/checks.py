"""Checks of a run's settings before it starts."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.data.readers.splits import Data, SplitData
from manyheads.directory import family_of
from manyheads.errors import UserError, nearest
from manyheads.runs.recipe import RunConfig
from manyheads.training.config import TrainingConfig
from manyheads.training.record import METRICS
from manyheads.training.tuning import select_trained

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Data)


def check_metric(training: TrainingConfig, *, resume: bool) -> None:
    """Raise UserError if `training.metric` is unknown, or if it conflicts with a setting that averages weights.

    Both the metric and the average would select the final weights.

    resume  True for a resumed run, whose settings were checked when it was started
    """
    metric, ema, average = training.metric, training.ema, training.average
    if metric not in (None, *METRICS):
        raise UserError(f"training.metric is {metric!r}: no such metric; {nearest(metric, METRICS)}")
    averaging = f"ema is {ema}" if ema is not None else f"average is {average}" if average > 1 else ""
    if averaging and metric is not None and not resume:
        raise UserError(
            f"training.{averaging} and training.metric is {metric!r}: expected only one of them, because each selects "
            f"the final weights; add training.metric=none or training.{'average=1' if ema is None else 'ema=none'}"
        )


def check_held_out(config: RunConfig, splits: SplitData[D]) -> None:
    """Raise UserError if the user has set the fraction to hold out, but nothing was held out."""
    if (fraction := vars(config).get("held_out")) is not None and not splits.held_out:
        raise UserError(
            f"held_out is {fraction}: no effect, because there are validation data; omit it, or give the "
            "training file alone: data=FILE"
        )


def check_selection(model: Model[Config], training: TrainingConfig, *, new: bool = False) -> None:
    """Raise UserError if the settings that select the trained weights do not fit the model.

    new  True if all weights are newly initialized, so that none come from another model
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
