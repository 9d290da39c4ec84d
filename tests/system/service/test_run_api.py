"""Training curves from the service: the content of metrics.jsonl, thinned for drawing."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from manyheads.service import run_api as watching
from manyheads.service.errors import Refused
from manyheads.service.run_api import FILE, _curves
from tests.support.services import client, measured, serving


def test_curves_equal_the_metrics_file(tmp_path: Path) -> None:
    long = tmp_path / "training-long"
    long.mkdir()
    measured(long, *({"step": step, "loss": float(step % 7), "bad": float("nan")} for step in range(1, 3001)))
    with (long / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30')  # a line that is being written
    with serving(tmp_path / "log", "--watch", long) as service, client(service) as http:
        (card,) = http.get("/runs").json()["runs"]
        assert (card["name"], card["finished"]) == ("training-long", False)
        (curve,) = http.get("/runs/training-long").json()["curves"]
        assert http.get("/runs/gone").status_code == 404
    steps = curve["steps"]
    assert (len(steps), steps[0], steps[-1]) == (500, 1, 3000)
    assert steps == sorted(set(steps))
    assert curve["values"] == [step % 7 for step in steps]


def test_an_unreadable_run_does_not_hide_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory without the right to read it raises so, but not for root, who may run this."""
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
        measured(tmp_path / name, *({"step": step, "loss": 1.0} for step in (1, 2)))

    def forbidden(path: Path) -> Any:
        if "yours" in path.parts:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original[path.name == FILE](path)

    original = (watching.run_status, watching.read_metrics)
    monkeypatch.setattr(watching, "run_status", forbidden)
    monkeypatch.setattr(watching, "read_metrics", forbidden)
    runs = watching.Runs({name: tmp_path / name for name in ("yours", "mine")})
    assert [card.name for card in runs.cards()] == ["yours", "mine"]
    assert [curve.metric for curve in runs.curves("mine").curves] == ["loss"]
    with pytest.raises(Refused, match=r"failed to read metrics\.jsonl of yours: Permission denied"):
        runs.curves("yours")
    (tmp_path / "yours" / FILE).unlink()
    (tmp_path / "yours" / FILE).symlink_to(FILE)  # refuses to be looked up, as what is in a closed directory does
    with pytest.raises(Refused, match=r"failed to read metrics\.jsonl of yours: Too many levels"):
        runs.curves("yours")


def test_non_finite_numbers_are_not_drawn() -> None:
    large = 10**400
    entries: list[Any] = [
        {"step": 1, "validation": 0.5}, {"step": 2, "loss": large}, {"step": large, "loss": 1},
        {"step": 3, "loss": 2, "\ud800": 2},
    ]  # fmt: skip
    curves = {curve.metric: (curve.steps, curve.values) for curve in _curves(entries)}
    assert curves == {"validation": ([1], [0.5]), "loss": ([3], [2.0])}


def test_counters_of_any_unit_are_not_drawn() -> None:
    entries = [{"step": s, "images": 64 * s, "images_per_second": 9.5, "loss": 1.0} for s in (1, 2)]
    assert [curve.metric for curve in _curves(entries)] == ["images_per_second", "loss"]
