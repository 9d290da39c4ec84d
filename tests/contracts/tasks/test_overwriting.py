"""`manyheads.train(..., overwrite=True)` replaces a run, and loses nothing if the new run does not begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads.errors import UserError
from manyheads.training.run_directory import locked, run_status

ROWS = [(f"a {word} evening in {year}", label) for year in range(1960, 1990)
        for word, label in (("moving", "good"), ("wasted", "bad"))]  # fmt: skip
SETTINGS: dict[str, Any] = {"steps": 3, "vocabulary": 60, "progress": False}


def trained(out: Path, **settings: Any) -> Any:
    return manyheads.train("text-classification", **{"train": ROWS, **SETTINGS, **settings}, out=out)


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_a_run_is_replaced_and_runs_below_it_stay(tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(out)
    trained(out / "other")
    other = files(out / "other")
    with pytest.raises(UserError, match=r"contains a finished run; .*overwrite=True in Python") as refused:
        trained(out)
    assert "\n" not in str(refused.value)
    (out / "notes.txt").write_text("of the old run")
    assert trained(out, steps=2, overwrite=True).history[-1]["step"] == 2
    assert not (out / "notes.txt").exists()
    assert files(out / "other") == other
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    trained(tmp_path / "new", overwrite=True)


def test_an_unfinished_run_is_replaced(tmp_path: Path) -> None:
    trained(tmp_path / "run", callbacks=[lambda _: False], log_every=1)
    assert run_status(tmp_path / "run") == "unfinished"
    with pytest.raises(UserError, match=r"overwrite=True in Python, or resume it with: manyheads train --resume"):
        trained(tmp_path / "run")
    assert trained(tmp_path / "run", overwrite=True).history[-1]["step"] == 3


@pytest.mark.parametrize(
    "settings",
    [{"width": 7, "heads": 2}, {"train": [("a", None)]}, {"init": "no/such"}],
)
def test_a_run_that_fails_at_its_start_leaves_the_old_run(settings: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(out)
    before = files(out)
    with pytest.raises(UserError):
        trained(out, overwrite=True, **settings)
    assert files(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_other_directories_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    with pytest.raises(UserError, match="not empty and contains no run"):
        trained(tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "x"
    with pytest.raises(UserError, match="overwrite and resume: expected one of them"):
        manyheads.train(resume=tmp_path / "run", overwrite=True)


def test_a_dry_run_replaces_nothing(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    before = files(tmp_path / "run")
    trained(tmp_path / "run", overwrite=True, dry_run=True)
    assert files(tmp_path / "run") == before
    with locked(tmp_path / "run"):
        pass
