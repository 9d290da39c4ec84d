"""Checks of the settings of a new run. A resumed run keeps the settings that it was started with."""

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


def check_metric(training: TrainingConfig) -> None:
    """Raise UserError if the metric that selects the final weights is unknown."""
    if (metric := training.metric) not in (None, *METRICS):
        raise UserError(f"training.metric is {metric!r}: no such metric; {nearest(metric, METRICS)}")


def check_held_out(config: RunConfig, splits: SplitData[D]) -> None:
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
