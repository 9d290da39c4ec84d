"""Progress files of a run."""

import json

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from manyheads.training.loop import train
from tests.support.toy import ToyTask, toy_route
from tests.unit.training.test_progress import CONFIG


def test_a_run_writes_metrics_events_and_a_curve(tmp_path):
    train(ToyTask(), CONFIG, tmp_path, compute=toy_route())
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    training = [entry for entry in entries if "loss" in entry]
    assert [entry["step"] for entry in training] == [10, 20, 30, 40]
    assert training[0]["learning_rate"] == pytest.approx(16**-0.5 * 10**-0.5)
    assert training[-1]["items"] > training[0]["items"] > 10
    assert training[-1]["loss"] < training[0]["loss"]
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [10, 20, 30, 40]
    assert [event.step for event in events.Scalars("validation/loss")] == [20, 40]
    with Image.open(tmp_path / "loss.png") as image:
        assert len(image.getcolors(10**6) or []) > 50


def test_relogged_metrics_appear_once_in_events(tmp_path):
    def broken(call):
        if call == 25:
            raise OSError("the disk is gone")

    task = ToyTask()
    task.before_loss = broken
    with pytest.raises(OSError, match="gone"):
        train(task, CONFIG, tmp_path, compute=toy_route())
    train(ToyTask(), CONFIG, tmp_path, compute=toy_route(), resume=True)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [10, 20, 30, 40]
