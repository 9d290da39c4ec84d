"""State of listed runs: resuming with one call, killed runs without a record, and packages installed by pip."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab import results_keep
from lab.evidence.listed import Listed
from lab.evidence.standing import MINILM, Standing, kept_records
from manyheads import files

RUN = Listed("lm", "lm", "a", "it", ("language-modeling",), 1, "cpu")


def test_an_orphaned_training_keeps_its_lock(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    two = [Standing([RUN], tmp_path / "runs", None, "cpu") for _ in range(2)]
    with two[0].alone(RUN) as lock:
        assert lock is not None
        training = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock])
    with two[1].alone(RUN) as lock:
        assert lock is None
    assert "lm: another process carries it on" in capfd.readouterr().err
    training.communicate(b"\n")
    with two[1].alone(RUN) as lock:
        assert lock is not None


def test_leftovers_of_a_kill_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_keep, "RECORDS", tmp_path)
    (tmp_path / "runs").mkdir()
    record = json.dumps({"evidence": {"run": "lm", "settings": RUN.settings}})
    (tmp_path / "runs" / f"{files.LEFTOVER}12345678-lm.json").touch()
    (tmp_path / "runs" / f"{files.LEFTOVER}87654321-lm.json").write_text(record)
    (tmp_path / "runs" / "lm.json").write_text(record)
    assert [about["run"] for about in kept_records()] == ["lm"]


def test_the_link_to_installed_weights_is_renewed(tmp_path: Path, minilm: Path) -> None:
    runs = Standing([], tmp_path, None, "cpu")
    (tmp_path / MINILM).symlink_to(tmp_path / "of another Python")
    for _ in range(2):
        runs.link_minilm()
        assert (tmp_path / MINILM / "config.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == [MINILM]
