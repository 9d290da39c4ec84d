"""A resumed run is bit-for-bit identical to an uninterrupted one."""

import json
import math
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from manyheads.errors import UserError
from manyheads.training import session
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train
from manyheads.training.run_log import read_metrics
from manyheads.training.schedules import linear
from tests.support.toy import ToyTask, toy_route

SETTINGS: dict[str, Any] = {
    "steps": 60, "schedule": "noam", "width": 16, "warmup": 20, "accumulate": 3, "clip": 1.0, "log_every": 7,
    "average": 2, "average_every": 10, "checkpoint_every": 8, "validate_every": 9, "metric": "loss",
}  # fmt: skip
TIMES = {"seconds", "items_per_second", "waiting"}


class Crash(Exception):
    pass


def run(out: Path, crash: int | None = None, **options) -> ToyTask:
    """Train to the end, or until the `crash`-th micro-batch of this session."""

    def hook(call: int) -> None:
        if call == crash:
            raise Crash

    task = options.pop("task", None) or ToyTask()
    task.before_loss = hook
    config = options.pop("config", None) or TrainingConfig(**SETTINGS)
    train(task, config, out, compute=options.pop("compute", toy_route()), **options)
    return task


def outcome(out: Path) -> tuple[bytes, list[dict[str, Any]], dict[str, Any]]:
    """Return the final weights, and the metrics and the summary without times."""
    entries = [{k: v for k, v in e.items() if k not in TIMES} for e in read_metrics(out / "metrics.jsonl")]
    summary = json.loads((out / "state" / "finished.json").read_text())
    return (out / "model.safetensors").read_bytes(), entries, {k: v for k, v in summary.items() if k not in TIMES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    return outcome(out)


def test_a_crash_does_not_change_the_result(tmp_path, whole):
    for crash in (2, 40, 61, 33):  # before the first checkpoint, in the middle of an epoch, of a group, of a window
        with pytest.raises(Crash):
            run(tmp_path / "run", crash, resume=(tmp_path / "run").exists())
        torch.rand(random.randrange(9))  # whatever the next process did before
    run(tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == whole


def test_a_damaged_end_is_reported(tmp_path):
    config = TrainingConfig(**{**SETTINGS, "steps": 3, "warmup": 1})
    run(tmp_path, config=config)
    for content in (b"{}", b"not json", b"\xff"):
        (tmp_path / "state" / "finished.json").write_bytes(content)
        with pytest.raises(
            ValueError, match=r"finished\.json: .*delete the file: --resume continues from the last checkpoint"
        ):
            run(tmp_path, config=config, resume=True)
    (tmp_path / "state" / "finished.json").unlink()
    run(tmp_path, config=config, resume=True)
    assert json.loads((tmp_path / "state" / "finished.json").read_text())["step"] == 3


def test_metrics_are_complete_without_duplicates(whole):
    steps = [entry["step"] for entry in whole[1] if "loss" in entry]
    assert steps == list(range(7, 61, 7))
    assert [entry["step"] for entry in whole[1] if "validation" in entry] == list(range(9, 61, 9))


class Growing(ToyTask):
    """Weights grow in training, so that the first validation is the best."""

    def validate(self) -> dict[str, float]:
        return {"loss": self.model.first.weight.abs().sum().item()}


def test_early_stopping_resumes_with_its_state(tmp_path):
    config = TrainingConfig(**{**SETTINGS, "steps": 400, "validate_every": 4, "patience": 5, "checkpoint_every": 7})
    run(tmp_path / "whole", task=Growing(), config=config)
    expected = outcome(tmp_path / "whole")
    assert (expected[2]["step"], expected[2]["weights"]) == (24, "best (step 4)")
    assert expected[2]["reason"] == "no better loss in 5 validations"
    with pytest.raises(Crash):
        run(tmp_path / "run", 56, task=Growing(), config=config)  # in step 23, after four validations without a best
    saved = json.loads((tmp_path / "run" / "state" / "checkpoint-00000021.json").read_text())["content"]
    assert saved["counters"]["without_best"] == 4
    run(tmp_path / "run", task=Growing(), config=config, resume=True)
    assert outcome(tmp_path / "run") == expected


def test_a_moving_average_resumes_bit_for_bit(tmp_path):
    config = TrainingConfig(**{**SETTINGS, "average": 1, "ema": 0.9})
    run(tmp_path / "whole", config=config)
    with pytest.raises(Crash):
        run(tmp_path / "parts", config=config, crash=77)
    run(tmp_path / "parts", config=config, resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_bf16_resumes_bit_for_bit(tmp_path):
    compute = toy_route(precision="bf16")
    run(tmp_path / "whole", compute=compute)
    with pytest.raises(Crash):
        run(tmp_path / "crashed", crash=70, compute=compute)
    run(tmp_path / "crashed", compute=compute, resume=True)
    assert outcome(tmp_path / "crashed") == outcome(tmp_path / "whole")


def test_max_minutes_stops_without_changing_the_result(tmp_path, whole, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(
        session, "time", SimpleNamespace(monotonic=lambda: next(clock))
    )  # a second passes at every look
    sessions = 0
    while sessions < 20:
        summary = train(
            ToyTask(), TrainingConfig(**SETTINGS), tmp_path / "run", compute=toy_route(), resume=True, max_minutes=0.3
        )
        sessions += 1
        if summary.status == "finished":
            break
        assert "resume with: " in summary.reason
    assert sessions > 2
    assert outcome(tmp_path / "run") == whole  # metrics hold the learning rates


class Counted(ToyTask):
    """Task that counts its validations. Its loss is best after `best` micro-batches."""

    def __init__(self, best: int) -> None:
        super().__init__()
        self.best, self.validated = best, 0

    def validate(self) -> dict[str, float]:
        self.validated += 1
        return {"loss": abs(self.calls - self.best) + super().validate()["loss"] / 1e3}


@pytest.mark.parametrize(
    ("settings", "weights", "validations"),
    [
        ({"steps": 54, "average": 1}, "best (step 18)", 6),  # of steps 9, 18, ... 54
        ({"steps": 54, "average": 1, "metric": None}, "last", 6),
        ({"steps": 60, "average": 1, "metric": None}, "last", 7),
        ({"steps": 54, "average": 2}, "best (step 18)", 7),  # and of the mean
    ],
)
def test_weights_are_never_validated_twice(tmp_path, settings, weights, validations):
    task = Counted(best=18 * 27 // 10)
    run(tmp_path, task=task, config=TrainingConfig(**{**SETTINGS, **settings}))
    summary = json.loads((tmp_path / "state" / "finished.json").read_text())
    assert (summary["weights"], task.validated) == (weights, validations)
    logged = {e["step"]: e["validation"] for e in read_metrics(tmp_path / "metrics.jsonl") if "validation" in e}
    chosen = 18 if "best" in weights else settings["steps"]
    assert chosen not in logged or summary["metrics"] == logged[chosen]


def test_another_config_or_setting_cannot_resume(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path / "run", 60, settings={"dropout": 0.1})
    other = TrainingConfig(**{**SETTINGS, "warmup": 30, "clip": None, "steps": 50})
    with pytest.raises(ValueError, match=r"differences: warmup: 20 -> 30; clip: 1.0 -> None; dropout: 0.1 -> 0.2"):
        run(tmp_path / "run", resume=True, config=other, settings={"dropout": 0.2})
    with pytest.raises(ValueError, match=r"the data has changed: expected 10 batches per epoch, found 11"):
        run(tmp_path / "run", resume=True, task=ToyTask(batches=11), settings={"dropout": 0.1})
    longer = TrainingConfig(**{**SETTINGS, "steps": 70})
    run(tmp_path / "run", resume=True, config=longer, settings={"dropout": 0.1})
    run(tmp_path / "whole", config=longer)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("finished", [False, True])
def test_a_longer_run_has_the_schedule_of_its_new_length(tmp_path, finished):
    settings = {**SETTINGS, "schedule": "linear", "learning_rate": 0.01}
    if finished:
        run(tmp_path, config=TrainingConfig(**settings))
    else:
        with pytest.raises(Crash):
            run(tmp_path, 60, config=TrainingConfig(**settings))
    longer = TrainingConfig(**{**settings, "steps": 120, "validate_every": 5, "log_every": 1, "patience": 99})
    run(tmp_path, resume=True, config=longer)
    rates = {e["step"]: e["learning_rate"] for e in read_metrics(tmp_path / "metrics.jsonl") if "learning_rate" in e}
    assert rates[61] == pytest.approx(linear(61, peak=0.01, total=120, warmup=20))
    assert max(rates) == 120


class Diverging(ToyTask):
    def validate(self) -> dict[str, float]:
        return {"loss": math.nan}


def test_a_diverged_run_is_not_finished(tmp_path):
    with pytest.raises(UserError, match=r"training diverged: the validation loss of the last weights is nan"):
        run(tmp_path, task=Diverging(), config=TrainingConfig(**{**SETTINGS, "average": 1}))
    assert not (tmp_path / "state" / "finished.json").exists()


def test_a_finished_run_continues_with_a_larger_budget(tmp_path, log):
    run(tmp_path / "run")
    before = outcome(tmp_path / "run")
    assert run(tmp_path / "run", resume=True).calls == 0
    assert "this run is finished" in log.text
    assert outcome(tmp_path / "run") == before
    longer = TrainingConfig(**{**SETTINGS, "steps": 90})
    run(tmp_path / "run", resume=True, config=longer)
    run(tmp_path / "whole", config=longer)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_another_compute_config_is_a_warning(tmp_path, log):
    with pytest.raises(Crash):
        run(tmp_path, 60)
    run(tmp_path, resume=True, compute=toy_route(precision="bf16"))
    assert "this resume will NOT be bit-identical" in (told := log.text)
    assert "precision: float32 -> bf16" in told


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, path.stat().st_size // 2), os.unlink])
@pytest.mark.parametrize("file", ["checkpoint-00000016.safetensors", "checkpoint-00000016.json"])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path, whole, log, file, damage):
    with pytest.raises(Crash):
        run(tmp_path, 60)
    damage(tmp_path / "state" / file)
    run(tmp_path, resume=True)
    told = log.text
    assert "resuming after step 8" in told
    if not (damage is os.unlink and file.endswith("json")):  # without its JSON there is no checkpoint to speak of
        assert "checkpoint-00000016.json: cannot use this checkpoint" in told
        assert "using the previous good checkpoint of step 8" in told
    assert outcome(tmp_path) == whole


def test_a_damaged_snapshot_makes_its_checkpoint_unusable(tmp_path, whole, log):
    with pytest.raises(Crash):
        run(tmp_path, 60)
    flip(tmp_path / "state" / "weights-00000010.safetensors")
    run(tmp_path, resume=True)
    assert "weights-00000010.safetensors is truncated or altered" in log.text
    assert outcome(tmp_path) == whole


@pytest.mark.parametrize("damage", [flip, os.unlink])
def test_missing_best_weights_are_reported_and_the_run_continues(tmp_path, log, damage):
    settings = {**SETTINGS, "steps": 30, "average": 1}
    with pytest.raises(Crash):
        run(tmp_path / "run", 66, task=Growing(), config=TrainingConfig(**settings))  # after step 24
    damage(tmp_path / "run" / "state" / "weights-00000009.safetensors")
    run(tmp_path / "run", task=Growing(), config=TrainingConfig(**settings), resume=True)
    told = log.text
    assert told.count("checkpoint-00000024.json: this checkpoint is incomplete: ") == 1
    assert "using step 24 without the missing weights" in told
    assert "the best weights (step 9, " in told
    assert "resuming after step 24" in told
    # from there on the weights are those of a run that nothing happened to, and the first validation is the best again
    run(tmp_path / "whole", task=Growing(), config=TrainingConfig(**{**settings, "steps": 27, "metric": None}))
    assert outcome(tmp_path / "run")[2]["weights"] == "best (step 27)"
    assert outcome(tmp_path / "run")[0] == outcome(tmp_path / "whole")[0]


def test_missing_snapshots_are_reported_and_skipped(tmp_path, log):
    settings = {**SETTINGS, "steps": 39, "average": 4, "metric": None}
    with pytest.raises(Crash):
        run(tmp_path, 85, config=TrainingConfig(**settings))  # after step 32
    flip(tmp_path / "state" / "weights-00000020.safetensors")
    run(tmp_path, config=TrainingConfig(**settings), resume=True)
    assert "the weights of step 20 are lost" in log.text
    assert outcome(tmp_path)[2]["weights"] == "mean of 3"  # of steps 10, 30 and 39


def test_only_damaged_checkpoints_are_an_error(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, 60)
    for path in (tmp_path / "state").glob("*.json"):
        flip(path)
    with pytest.raises(ValueError, match="no usable checkpoint found"):
        run(tmp_path, resume=True)


def test_a_checkpoint_stores_tied_tensors_once_without_pickle(tmp_path):
    run(tmp_path)
    state = tmp_path / "state"
    assert {path.suffix for path in state.iterdir() if path.name != "lock"} == {".json", ".safetensors"}
    names = set(load_file(state / "checkpoint-00000060.safetensors"))
    assert {"model.first.weight", "optimizer.first.weight.exp_avg", "rng.torch", "model.ballast"} < names
    assert not any("tied" in name for name in names)
    assert len(list(state.glob("checkpoint-*.json"))) == 2
