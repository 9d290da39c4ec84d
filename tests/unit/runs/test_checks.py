"""Settings of a new run that exclude each other, have no effect, or leave too few training data."""

from types import SimpleNamespace
from typing import Any

import pytest

from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError
from manyheads.runs.checks import check_held_out, check_metric
from manyheads.runs.recipe import DataConfig
from manyheads.training.config import TrainingConfig


def config(held_out: float | None = None, **training: Any) -> Any:
    return SimpleNamespace(held_out=held_out, training=TrainingConfig(steps=5, width=8, **training))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ema": 0.9, "metric": "loss"}, "training.ema is 0.9 and training.metric is 'loss': .*training.ema=none"),
        ({"average": 3, "metric": "f1"}, "training.average is 3 and training.metric is 'f1': .*training.average=1"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(**settings)


def test_a_large_held_out_fraction_is_refused() -> None:
    with pytest.raises(UserError, match="held_out is 0.999: expected a number above 0 and at most 0.5"):
        DataConfig(held_out=0.999)
    assert DataConfig(held_out=0.5).held_out == 0.5


def test_compatible_settings_are_accepted() -> None:
    for settings in ({"ema": 0.9}, {"average": 3}, {"metric": "loss"}, {"held_out": 0.5}):
        check_metric(config(**settings).training)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UserError, match=r"training.metric is 'los': no such metric; did you mean loss\?"):
        check_metric(config(metric="los").training)


def test_a_held_out_fraction_next_to_validation_data_is_refused() -> None:
    given: SplitData[Any] = SplitData(["a"], ["b"], None)
    with pytest.raises(UserError, match=r"held_out is 0.3: no effect, because there are validation data"):
        check_held_out(config(held_out=0.3), given)
    check_held_out(config(held_out=0.3), given._replace(held_out=1))
    check_held_out(config(), given)
