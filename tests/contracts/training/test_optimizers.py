"""Runs with each optimizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train
from tests.support.toy import ToyTask, toy_route
from tests.unit.training.test_optimizers import KERAS, PAPER, SGD


@pytest.mark.parametrize("way", [PAPER, SGD, KERAS])
def test_ema_weights_resume_bit_for_bit(way: dict[str, Any], tmp_path: Path) -> None:
    settings = {**way, "schedule": "linear", "warmup": 3, "learning_rate": 1e-2, "checkpoint_every": 4, "clip": 1.0}
    config = TrainingConfig(steps=12, **settings)
    train(ToyTask(), config, tmp_path / "whole", compute=toy_route())
    stopped = train(ToyTask(), config, tmp_path / "parts", compute=toy_route(), max_minutes=1e-9)
    assert stopped.status == "stopped"

    class Stops(Exception):
        pass

    def stop(call: int) -> None:
        if call == 7:
            raise Stops

    task = ToyTask()
    task.before_loss = stop
    with pytest.raises(Stops):
        train(task, config, tmp_path / "parts", compute=toy_route(), resume=True)
    train(ToyTask(), config, tmp_path / "parts", compute=toy_route(), resume=True)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == two
    assert json.loads((tmp_path / "parts" / "state" / "finished.json").read_text())["step"] == 12
