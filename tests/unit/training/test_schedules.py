import math

import pytest
import torch

from manyheads.training.config import TrainingConfig
from manyheads.training.schedules import constant, cosine, inverse_sqrt, linear, noam, schedule, warmup_warning


def test_noam_schedule_equals_the_formula():
    assert noam(1, width=512, warmup=4000) == pytest.approx(1.747e-7, rel=3e-4)
    assert noam(4000, width=512, warmup=4000) == pytest.approx(6.987e-4, rel=2e-4)
    assert noam(16000, width=512, warmup=4000) == pytest.approx(noam(4000, width=512, warmup=4000) / 2)
    rates = [noam(step, width=512, warmup=4000, factor=2.0) for step in range(1, 9000)]
    assert rates.index(max(rates)) + 1 == 4000


def test_inverse_sqrt_is_noam_with_its_peak_as_the_learning_rate():
    config = TrainingConfig(minutes=1, schedule="inverse_sqrt", learning_rate=2e-3, warmup=200)
    factor = 2e-3 * (512 * 200) ** 0.5
    for step in (1, 100, 200, 201, 2600):
        assert schedule(config, 7)(step) == pytest.approx(noam(step, width=512, warmup=200, factor=factor))
    assert inverse_sqrt(800, peak=1.0, warmup=200) == 0.5
    longer = TrainingConfig(steps=10, schedule="constant", warmup=200)
    assert warmup_warning(config, 7) is None
    assert "never reaches its peak" in str(warmup_warning(longer, 7))


def test_linear_schedule_rises_and_falls():
    rates = [linear(step, peak=1.0, total=10, warmup=2) for step in range(1, 12)]
    assert rates == pytest.approx([0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0, 0])


def test_cosine_schedule_equals_torch():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    for step in range(21):
        assert cosine(step + 5, peak=0.3, total=25, warmup=5) == pytest.approx(reference.get_last_lr()[0], abs=1e-15)
        optimizer.step()
        reference.step()
    assert cosine(2, peak=0.3, total=25, warmup=5) == pytest.approx(0.3 * 2 / 5)


def test_a_decay_ends_at_the_floor():
    """nanoGPT's: min_lr + (1 + cos) / 2 * (learning_rate - min_lr)."""
    config = TrainingConfig(steps=2000, schedule="cosine", learning_rate=1e-3, warmup=100, floor=0.1)
    rate = schedule(config, steps_per_epoch=7)
    for step in (100, 700, 1999, 2000, 2500):
        ratio = min(1.0, (step - 100) / 1900)
        assert rate(step) == pytest.approx(1e-4 + (1 + math.cos(math.pi * ratio)) / 2 * (1e-3 - 1e-4))
    assert rate(50) == pytest.approx(5e-4)
    assert linear(10, peak=1.0, total=10, floor=0.25) == 0.25
    assert linear(5, peak=1.0, total=10, floor=0.5) == pytest.approx(0.75)


def test_constant_schedule_warms_up():
    assert [constant(step, peak=4.0, warmup=4) for step in (1, 3, 4, 99)] == [1, 3, 4, 4]
    assert constant(1, peak=4.0) == 4.0


def test_the_shorter_of_steps_and_epochs_determines_a_decay():
    config = TrainingConfig(steps=100, epochs=3, schedule="linear", warmup=0, learning_rate=1.0)
    assert schedule(config, steps_per_epoch=20)(30) == pytest.approx(0.5)
    assert schedule(config, steps_per_epoch=50)(50) == pytest.approx(0.5)


@pytest.mark.parametrize("minutes", [None, 0.5, 1000.0])
@pytest.mark.parametrize("name", ["noam", "inverse_sqrt", "linear", "cosine", "constant"])
def test_time_limits_do_not_change_a_schedule(name, minutes):
    curves = [
        schedule(TrainingConfig(steps=50, minutes=m, schedule=name, width=8, warmup=5), steps_per_epoch=10)
        for m in (None, minutes)
    ]
    assert [curves[0](s) for s in range(1, 60)] == [curves[1](s) for s in range(1, 60)]
    assert all(math.isfinite(curves[1](s)) for s in range(1, 60))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "a run needs a budget: set steps, epochs or minutes"),
        ({"steps": 5}, "noam needs the width"),
        ({"steps": 5, "schedule": "inverse_sqrt", "warmup": 0}, "inverse_sqrt needs a warmup above 0"),
        ({"minutes": 5, "schedule": "cosine"}, "cosine needs steps or epochs"),
        ({"steps": 0, "width": 8}, "steps is 0: expected an integer from 1 to 1000000000 or none"),
        ({"steps": 99999999999999999999, "width": 8}, "steps is 99999999999999999999: expected an integer from 1"),
        (
            {"steps": 5, "width": 8, "optimizer": "lion"},
            "optimizer is 'lion': expected one of adam, adamw, bert_adam, sgd",
        ),
        ({"steps": 5, "width": 8, "patience": 2}, "patience needs a metric"),
        ({"steps": 5, "width": 8, "weight_decay": 0.1}, "use optimizer=adamw"),
        ({"steps": 5, "schedule": "cosine", "floor": 2}, "floor is 2: expected a number from 0 to 1"),
        ({"steps": 5, "width": 8, "ema": 1.0}, "ema is 1.0: expected a number above 0 and below 1"),
        ({"steps": 5, "width": 8, "ema": 0.9, "average": 3}, "ema is 0.9 and average is 3: expected only one of them"),
        (
            {"steps": 5, "width": 8, "floor": 0.1},
            "noam does not decay: use the schedule linear or cosine, or add training.floor=0",
        ),
        ({"minutes": float("nan"), "width": 8}, "minutes is nan: expected a number above 0"),
        ({"steps": 5, "width": 8, "clip": float("nan")}, "clip is nan: expected a number above 0"),
        ({"steps": 5, "width": 8, "optimizer": "adamw", "weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"steps": 5, "width": 8, "eps": -1.0}, "eps is -1.0"),
        (
            {"steps": 5, "width": 8, "betas": (0.9, 2.0)},
            r"betas is \(0.9, 2.0\): expected a list with each item a number from 0 to below 1",
        ),
        ({"steps": 5, "width": 8, "learning_rate": float("inf")}, "learning_rate is inf"),
    ],
)
def test_an_invalid_config_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**settings)
