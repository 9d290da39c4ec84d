"""Runs that stop, continue, grow longer, and are used before they are finished."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads import cli, directory
from manyheads.tasks.train import train
from manyheads.training.checkpoints import Checkpoints, _digest

SETTINGS: dict[str, Any] = {
    "tokens": "words", "vocabulary": 60, "model.width": 16, "training.checkpoint_every": 2, "training.log_every": 2,
    "steps": 8, "seed": 3, "training.validate_every": 2, "threads": 1,
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"a {('bad', 'good')[i % 2]} film {i}\t{('no', 'yes')[i % 2]}\n" for i in range(60))
    (tmp_path / "d.tsv").write_text(f"text\tlabel\n{rows}")
    return tmp_path / "d.tsv"


def start(out: str, monkeypatch: pytest.MonkeyPatch | None = None, stop: int = 4, **more: Any) -> Any:
    """Train a classifier, and kill the run after the checkpoint of step `stop`."""
    if monkeypatch is None:
        return train("text-classification", {**SETTINGS, "data": "d.tsv", **more}, out=out)
    save = Checkpoints.save

    def killed(self: Checkpoints, step: int, *arguments: Any) -> None:
        save(self, step, *arguments)
        if step == stop:
            self.wait()
            raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed)
        with pytest.raises(RuntimeError, match="killed"):
            start(out, **more)
    return None


def weights(out: str) -> bytes:
    return (Path(out) / "model.safetensors").read_bytes()


def test_a_run_resumes_without_its_recipe_settings_and_directory(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start("whole")
    start("parts", monkeypatch)
    path = str(Path("parts").absolute())
    (data.parent / "elsewhere").mkdir()
    os.chdir("elsewhere")
    assert cli.main(["train", "--resume", path]) == 0
    assert "resuming after step 4" in capsys.readouterr().err
    os.chdir("..")
    assert weights("parts") == weights("whole")
    records = [json.loads((Path(out) / "result.json").read_text()) for out in ("whole", "parts")]
    assert records[0]["overrides"].keys() == records[1]["overrides"].keys()
    assert records[0]["metrics"] == records[1]["metrics"]


def test_a_run_interrupted_before_its_first_checkpoint_resumes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("manyheads.runs.run.log_splits", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start("r")
    assert train(resume="r")["steps"] == 8


@pytest.mark.parametrize("arguments", [["--resume", "steps=8", "--out", "r"], ["--resume", "--out", "r"]])
def test_the_whole_command_resumes_too(data: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    start("r", monkeypatch)
    assert cli.main(["train", "text-classification", *arguments]) == 0
    start("whole")
    assert weights("r") == weights("whole")


def test_a_finished_run_is_trained_longer(data: Path, log: Any) -> None:
    start("r")
    result = train(resume="r", overrides={"steps": 12, "patience": 50, "training.validate_every": 3})
    assert result["steps"] == 12
    assert not train(resume="r", steps=14, max_minutes=1e-9)
    assert train(resume="r")["steps"] == 14  # the last length holds, although no checkpoint was written since
    assert train(resume="r")["steps"] == 14
    assert "to train it longer, add for example training.steps=28" in log.text


@pytest.mark.parametrize(
    ("resume", "settings", "message"),
    [
        ("r", {"learning_rate": 1}, r"cannot be resumed with these; its command is: manyheads train --resume r; diff"),
        ("r", {"vocabulary": 61}, "differences: vocabulary: 60 -> 61"),
        ("r", {"steps": 3}, "training.steps is 3: r has already trained for 8 steps"),
        ("r", {"epochs": 1}, r"training.epochs is 1: r has already trained for \S+ epochs"),
        ("r", {"minutes": 1e-6}, "training.minutes is 1e-06: r has already trained for"),
        ("missing", {}, "missing: no such directory, so there is no run to resume"),
        ("empty", {}, "empty contains no run to resume; to start one, leave out --resume"),
    ],
)
def test_what_cannot_be_resumed_is_refused_before_the_data_are_read(
    data: Path, resume: str, settings: dict[str, Any], message: str
) -> None:
    start("r")
    Path("empty").mkdir()
    data.unlink()
    with pytest.raises(ValueError, match=message):
        train(resume=resume, overrides=settings)
    assert not list(Path("empty").iterdir())
    with pytest.raises(ValueError, match="contains a run of the recipe text-classification, not of tagging"):
        train("tagging", out="r", resume=True)


@pytest.mark.parametrize("metric", ["accuracy", None])
def test_an_unfinished_run_is_used_with_its_best_or_last_weights(
    data: Path, monkeypatch: pytest.MonkeyPatch, log: Any, metric: str | None
) -> None:
    start("r", monkeypatch, stop=6, metric=metric)
    model = manyheads.load("r")
    assert model.classify("a good film")[0].label in ("no", "yes")
    which = r"best weights, step [246]" if metric else "last weights, step 6"
    assert re.search(
        rf"r: using the {which} of 8; the run is unfinished: resume with: manyheads train --resume r$",
        log.text,
        re.MULTILINE,
    )
    assert cli.main(["evaluate", "r"]) == 0
    assert "r: the run has no test data; scoring its validation data" in log.text
    train(resume="r")
    assert directory.load("r").model.state_dict().keys() == model.model.state_dict().keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counters": {}}, "cannot use the checkpoint: 'best'"),
        ({"config": None}, "cannot use the checkpoint"),
        ({"counters": {"best": {"file": "x"}}}, None),  # a file that the checkpoint does not list
    ],
)
def test_a_damaged_checkpoint_of_an_unfinished_run_is_reported(
    data: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str | None
) -> None:
    start("r", monkeypatch)
    for file in Path("r/state").glob("checkpoint-*.json"):
        content = {**json.loads(file.read_text())["content"], **change}
        file.write_text(json.dumps({"sha256": _digest(content), "content": content}))
    if message is None:
        assert manyheads.load("r").path == Path("r")
    else:
        with pytest.raises(ValueError, match=message):
            manyheads.load("r")


@pytest.mark.parametrize(
    "settings", [{"training.metric": "bogus"}, {"data": "none.tsv"}, {"columns.text": "x"}, {"training.metric": "chrf"}]
)
def test_a_refused_run_leaves_nothing_behind(data: Path, settings: dict[str, Any]) -> None:
    with pytest.raises((ValueError, FileNotFoundError)):
        train("text-classification", {**SETTINGS, "data": "d.tsv", **settings}, out="runs/new/r")
    assert not Path("runs").exists()


def test_a_run_on_own_data_keeps_the_best_weights(data: Path) -> None:
    start("r")
    saved = json.loads(next(Path("r/state").glob("checkpoint-*.json")).read_text())["content"]
    assert saved["config"]["metric"] == "accuracy"
    start("last", metric=None)
    assert json.loads(Path("last/result.json").read_text())["weights"] == "last"
