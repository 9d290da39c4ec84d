"""Runs of a folder as a table, and their learning curves as one picture."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import manyheads
from manyheads import cli
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.listing import MAX_CURVES, ListedRun, differing_settings, draw_curves, find_runs
from manyheads.training.run_directory import locked


def write(path: Path, rate: float, *, finished: bool = True, **record: Any) -> None:
    (path / "state").mkdir(parents=True)
    entries: list[JsonObject] = [
        {"step": 1, "loss": 3.0},
        {"step": 2, "validation": {"loss": 2.5, "top1": 0.25}},
        {"step": 4, "validation": {"loss": 2.0 + rate, "top1": 0.5}},
    ]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    given = {"training.learning_rate": rate, "training.steps": 4}
    run = {"recipe": "image-classification", "given": given}
    (path / "state" / "run.json").write_text(json.dumps(run))
    if not finished:
        (path / "state" / "checkpoint-00000004.json").write_text("{}")
        return
    (path / "state" / "finished.json").write_text("{}")
    validation = {"loss": {"value": 2.0 + rate, "signature": "validation"}}
    metrics = {"top1": {"value": 0.75, "signature": "2 labels, 10 images"}}
    result = {
        "recipe": run["recipe"], "overrides": given, "metrics": metrics, "validation": validation, "wall_seconds": 90,
        "steps": 4,
    }  # fmt: skip
    (path / "result.json").write_text(json.dumps({**result, **record}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "runs" / "a", 0.1)
    write(tmp_path / "runs" / "deep" / "er" / "b", 0.2)
    write(tmp_path / "runs" / "c", 0.3, finished=False)
    (tmp_path / "runs" / "other").mkdir()
    return tmp_path / "runs"


def test_runs_are_listed_with_what_differs(folder: Path) -> None:
    rows = manyheads.list_runs(folder)
    assert [row["run"] for row in rows] == ["a", "c", "deep/er/b"]
    assert rows[0] == {
        "run": "a", "recipe": "image-classification", "learning_rate": 0.1, "validation_loss": 2.1, "test_top1": 0.75,
        "seconds": 90, "step": 4, "state": "finished",
    }  # fmt: skip
    assert rows[1]["state"] == "unfinished"
    assert rows[1]["validation_top1"] == 0.5
    assert "test_top1" not in rows[1]
    assert rows._repr_html_().count("<tr>") == 4


def test_a_run_in_training_is_running(folder: Path) -> None:
    with locked(folder / "c"):
        assert find_runs(folder)[1].state == "running"
    assert find_runs(folder)[1].state == "unfinished"


def test_runs_without_test_data_have_validation_scores(folder: Path) -> None:
    scores = {"loss": {"value": 1.5, "signature": "validation"}}
    write(folder / "d", 0.4, metrics=scores, validation={})
    row = next(row for row in manyheads.list_runs(folder) if row["run"] == "d")
    assert row["validation_loss"] == 1.5
    assert not any(key.startswith("test_") for key in row)


def test_the_command_prints_a_table_and_draws(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    assert cli.main(["runs", str(folder), "--out", str(picture)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["run", "recipe", "settings", "validation", "test", "minutes", "state"]
    assert "learning_rate=0.1" in printed[1]
    assert "steps=4" not in printed[1]  # all runs have it
    assert "unfinished, step 4" in printed[2]
    assert Image.open(picture).size[0] > 800
    assert cli.main(["runs", str(folder), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


@pytest.mark.parametrize("columns", [80, 90])
def test_the_table_fits_the_terminal(columns: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    for run in ("a", "c"):
        (folder / run / "result.json").unlink(missing_ok=True)
        given = {f"training.{name}": 0.125 for name in ("learning_rate", "weight_decay", "label_smoothing")}
        record = {"recipe": "image-classification", "given": given | {"training.seed": run}}
        (folder / run / "state" / "run.json").write_text(json.dumps(record))
    assert cli.main(["runs", str(folder)]) == 0
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert " ..." in lines[2]


@pytest.mark.parametrize(("place", "message"), [("missing", "found no such folder"), ("", "found no runs")])
def test_folders_without_runs_are_refused(tmp_path: Path, place: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        manyheads.list_runs(tmp_path / place)


def test_too_many_curves_are_refused(folder: Path, tmp_path: Path) -> None:
    runs = find_runs(folder) * MAX_CURVES
    with pytest.raises(UserError, match="36 runs are too many for a picture: expected at most 12"):
        draw_curves(runs, tmp_path / "curves.png")
    for file in folder.rglob("metrics.jsonl"):
        file.write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(UserError, match="found no validation scores"):
        draw_curves(find_runs(folder), tmp_path / "curves.png")


def test_a_damaged_record_names_its_file(folder: Path) -> None:
    (folder / "a" / "result.json").write_text("{")
    with pytest.raises(UserError, match=r"a/result\.json"):
        manyheads.list_runs(folder)


def test_the_weight_of_a_class_keeps_its_whole_key() -> None:
    runs = [
        ListedRun(name, Path(name), "sst2", {"class_weights.5": weight, "training.epochs": 1 + weight}, {}, {}, 1.0,
                  "finished", 1, [])
        for name, weight in (("a", 1), ("b", 2))
    ]  # fmt: skip
    assert differing_settings(runs)["b"] == {"class_weights.5": 2, "epochs": 3}
