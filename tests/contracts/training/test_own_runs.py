"""Records from elsewhere: files that the user did not name are reported, and opened only with the user's consent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import manyheads
from manyheads.cli import main
from manyheads.training import record

TEXTS = ["text,label"] + [f"{'good' if i % 2 else 'bad'} film number {i},{'yes' if i % 2 else 'no'}" for i in range(80)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text("\n".join(TEXTS) + "\n")
    return folder


def train(data: Path, out: Path) -> None:
    overrides = {"data": str(data), "training.steps": 2, "model.width": 8, "model.layers": 1, "threads": 1}
    manyheads.train("text-classification", overrides, out=out)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and with the state of the user whose run it is."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        train(data, folder / "run")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as another process of the same user finds it."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(record, "_added", set())
    return tmp_path / "run"


def evaluated(capsys: pytest.CaptureFixture[str], run: Path, *more: str) -> tuple[int, str]:
    status = main(["evaluate", str(run), *more])
    return status, capsys.readouterr().err


def test_own_runs_are_evaluated_in_any_place(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = run.rename(run.with_name("moved"))
    assert evaluated(capsys, moved) == (0, "")


def test_a_foreign_family_is_looked_up_once(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(run.with_name("of another user")))
    status, told = evaluated(capsys, run)
    assert status != 0
    assert str(data / "test.csv") in told
    assert "--trust" in told
    assert told.count("\n") == 1
    assert evaluated(capsys, run, "--data", str(data / "test.csv"))[0] == 0
    assert evaluated(capsys, run)[0] != 0
    assert main(["compare", str(run), str(run)]) != 0
    assert evaluated(capsys, run, "--trust")[0] == 0
    monkeypatch.setattr(record, "_added", set())
    assert evaluated(capsys, run)[0] == 0
    assert main(["compare", str(run), str(run)]) == 0


def test_the_file_of_own_runs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(record, "MAX_RUNS", 5)
    for number in range(33):
        record.add_own_run({"run": number})
    monkeypatch.setattr(record, "_added", set())
    own = [number for number in range(33) if record.is_own_run({"run": number})]
    assert 5 <= len(own) <= 10
    assert own == [*range(33 - len(own), 33)]
    assert len((tmp_path / "manyheads" / "runs").read_text().splitlines()) == len(own)


@pytest.mark.parametrize("split", ["data", "validation", "test"])
def test_paths_of_an_altered_record_are_not_opened(run: Path, capsys: pytest.CaptureFixture[str], split: str) -> None:
    """Paths of an altered record are not looked up, so the error does not show whether the file exists."""
    record = json.loads((run / "result.json").read_text())
    record["data"][split] = "/secret/of/theirs.csv"
    (run / "result.json").write_text(json.dumps(record))
    status, told = evaluated(capsys, run)
    assert status != 0
    assert "'/secret/of/theirs.csv'" in told
    assert "--trust" in told
    assert "no such" not in told


def test_an_unwritable_state_folder_is_reported(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a file"))
    monkeypatch.setattr(record, "_added", set())
    train(data, tmp_path / "run")
    assert "--trust" in log.text
    assert evaluated(capsys, tmp_path / "run") == (0, "")  # in this process it is known
