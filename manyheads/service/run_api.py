"""Runs whose curves are shown, while they are trained and afterwards: read from their metrics.jsonl, never written."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyheads.errors import UserError
from manyheads.service import schemas
from manyheads.service.errors import Refused
from manyheads.training.progress import read_metrics
from manyheads.training.run_directory import run_status

FILE = "metrics.jsonl"
POINTS = 500  # of a curve: more than a page has room for
NO_CURVES = ("step", "epoch", "seconds", "tokens")  # what only grows


class Runs:
    """By name. A file is read again when it has changed."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._directories = dict(directories)
        self._reading = threading.Lock()
        self._read: dict[str, tuple[tuple[int, int], list[schemas.Curve]]] = {}

    @classmethod
    def of(cls, models: Mapping[str, str], watched: Mapping[str, str]) -> Runs:
        """Models that have curves, and those that are watched. Raises UserError for one that is no directory."""
        for name, run in watched.items():
            if not Path(run).is_dir():
                raise UserError(f"--watch {run}: there is no such directory")
            if name in models:
                raise UserError(f"--watch {run}: a model is called {name}, too: name it, as in {name}-2={run}")
        trained = {name: Path(model) for name, model in models.items() if Path(model, FILE).is_file()}
        return cls({**trained, **{name: Path(run) for name, run in watched.items()}})

    def cards(self) -> list[schemas.RunCard]:
        return [self._card(name) for name in self._directories]

    def curves(self, name: str) -> schemas.Curves:
        """Raises Refused for a run that is not there."""
        if name not in self._directories:
            known = ", ".join(self._directories) or "none"
            raise Refused(404, f"there is no run {name[:100]!r}: known are {known}", "name", "run_not_found")
        file = self._directories[name] / FILE
        with self._reading:
            try:
                stamp = _stamp(file)
                if stamp is None:
                    return schemas.Curves(**self._card(name).model_dump(), curves=[])
                if name not in self._read or self._read[name][0] != stamp:
                    self._read[name] = stamp, _curves(read_metrics(file))
            except OSError as error:
                raise Refused(503, f"{FILE} of {name} cannot be read: {error.strerror}", "name") from None
            return schemas.Curves(**self._card(name).model_dump(), curves=self._read[name][1])

    def _card(self, name: str) -> schemas.RunCard:
        directory = self._directories[name]
        try:
            seconds = max(0.0, time.time() - (directory / FILE).stat().st_mtime)
        except OSError:
            seconds = None
        try:
            finished = run_status(directory) == "finished"
        except OSError:  # must not be read: told where its curves are asked for
            finished = False
        return schemas.RunCard(name=name, finished=finished, seconds=seconds)


def _stamp(file: Path) -> tuple[int, int] | None:
    """None where there is no file yet. Raises OSError where it must not be seen."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _curves(entries: list[dict[str, Any]]) -> list[schemas.Curve]:
    """Of every number that was measured more than once, training's before validation's."""
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for entry in entries:
        split = "validation" if isinstance(entry.get("validation"), dict) else "training"
        values = entry["validation"] if split == "validation" else entry
        for metric, value in values.items():
            if metric not in NO_CURVES and metric.isprintable() and _drawable(entry["step"]) and _drawable(value):
                points.setdefault((split, metric), []).append((entry["step"], value))
    return [
        schemas.Curve.model_validate({"metric": metric, "split": split, "steps": steps, "values": values})
        for (split, metric), curve in sorted(points.items(), key=lambda item: item[0][0])
        for steps, values in [zip(*_thinned(curve), strict=True)]
    ]


def _drawable(value: Any) -> bool:
    """A number of which there is a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most POINTS, evenly, the first and the last among them."""
    if len(points) <= POINTS:
        return points
    return [points[round(at * (len(points) - 1) / (POINTS - 1))] for at in range(POINTS)]
