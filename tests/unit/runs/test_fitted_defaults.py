"""Training settings that follow from the amount of data."""

import math
from dataclasses import replace

import pytest

from manyheads.runs.fitted_defaults import MIN_INTERVAL, MIN_STEPS, fit_to_data
from manyheads.training.config import TrainingConfig

EPOCHS = TrainingConfig(epochs=4, schedule="linear", warmup=100, validate_every=210)
STEPS = TrainingConfig(steps=1500, schedule="linear", warmup=150, validate_every=500)


def fitted(training, batches, *given, own_data=True):
    return fit_to_data(training, given, lambda: batches, own_data=own_data)


@pytest.mark.parametrize(
    ("training", "batches", "expected"),
    [
        (EPOCHS, 200, 100),  # 100 of 800 steps fit
        (EPOCHS, 100, 40),
        (replace(EPOCHS, epochs=None, steps=400), 100, 40),  # the same rule for runs in steps
        (replace(EPOCHS, epochs=None, minutes=1, schedule="constant"), 1, 100),
    ],
)
def test_warmup_is_a_fraction_of_the_run(training, batches, expected):
    assert fitted(training, batches).warmup == expected
    assert fitted(training, batches, own_data=False).warmup == expected
    assert fitted(training, batches, "training.warmup").warmup == training.warmup


def test_noam_keeps_its_peak_learning_rate_if_the_warmup_is_shortened():
    noam = TrainingConfig(steps=1000, width=64, warmup=4000, learning_rate=2.0)
    shortened = fitted(noam, 10)
    assert shortened.warmup == 100
    assert shortened.learning_rate * 100**-0.5 == pytest.approx(2.0 * 4000**-0.5)


@pytest.mark.parametrize(
    ("training", "given", "expected"),
    [
        (EPOCHS, (), None),
        (EPOCHS, ("training.validate_every",), 210),
        (STEPS, (), 500),
        (replace(STEPS, steps=600), (), None),
    ],
)
def test_own_data_are_validated_once_per_epoch(training, given, expected):
    assert fitted(training, 300, *given).validate_every == expected
    assert fitted(training, 300, *given, own_data=False).validate_every == training.validate_every


def test_small_data_train_for_enough_steps():
    longer = fitted(EPOCHS, 3)
    assert (longer.epochs, longer.warmup, longer.validate_every) == (math.ceil(MIN_STEPS / 3), 21, MIN_INTERVAL)
    assert fitted(EPOCHS, 30).validate_every is None
    assert fitted(EPOCHS, 3, "training.validate_every").validate_every == 210
    for given in ("training.epochs", "training.minutes", "training.steps"):
        assert fitted(EPOCHS, 3, given).epochs == 4
    assert fitted(EPOCHS, 3, own_data=False).epochs == 4
