"""Handlers that return the learning curves of training runs, during and after training.

The curves are read from the file metrics.jsonl of each run, which is never modified.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.service import schemas
from manyheads.service.errors import Refused
from manyheads.training.run_directory import run_status
from manyheads.training.run_log import read_metrics

FILE = "metrics.jsonl"
MAX_POINTS = 500  # maximum number of points of a learning curve in a response, more than the web page can show
# Names of the counters in metrics.jsonl, for which no learning curve is drawn. Another counter is named after the unit
# of the run, such as "images"; its rate is "images_per_second".
COUNTERS = ("step", "epoch", "seconds")


class Runs:
    """Training runs by name. The learning curves of a run are read again when its file metrics.jsonl changes."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._directories = dict(directories)
        self._reading = threading.Lock()
        self._read: dict[str, tuple[tuple[int, int], list[schemas.Curve]]] = {}

    @classmethod
    def of(cls, models: Mapping[str, str], watched: Mapping[str, str]) -> Runs:
        """Find the training runs: the models with learning curves, and the run directories that the user watches.

        Raises UserError for a missing directory.
        """
        for name, run in watched.items():
            if not Path(run).is_dir():
                raise UserError(f"--watch {run}: found no such directory")
            if name in models:
                raise UserError(f"--watch {run}: a model is named {name}, too: use another name, as in {name}-2={run}")
        trained = {name: Path(model) for name, model in models.items() if Path(model, FILE).is_file()}
        return cls({**trained, **{name: Path(run) for name, run in watched.items()}})

    def cards(self) -> list[schemas.RunCard]:
        return [self._card(name) for name in self._directories]

    def curves(self, name: str) -> schemas.Curves:
        """Return the learning curves of a run. Raises Refused if there is no run with this name."""
        if name not in self._directories:
            known = ", ".join(self._directories) or "none"
            raise Refused(404, f"found no run {name[:100]!r}: expected one of {known}", "name", "run_not_found")
        file = self._directories[name] / FILE
        with self._reading:
            try:
                stamp = _stamp(file)
                if stamp is None:
                    return schemas.Curves(**self._card(name).model_dump(), curves=[])
                if name not in self._read or self._read[name][0] != stamp:
                    self._read[name] = stamp, _curves(read_metrics(file))
            except OSError as error:
                raise Refused(503, f"failed to read {FILE} of {name}: {error.strerror}", "name") from None
            return schemas.Curves(**self._card(name).model_dump(), curves=self._read[name][1])

    def _card(self, name: str) -> schemas.RunCard:
        directory = self._directories[name]
        try:
            seconds = max(0.0, time.time() - (directory / FILE).stat().st_mtime)
        except OSError:
            seconds = None
        try:
            finished = run_status(directory) == "finished"
        except OSError:  # Permission to read the file is missing. The method `curves` reports this error.
            finished = False
        return schemas.RunCard(name=name, finished=finished, seconds=seconds)


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return the size and modification time of a file, or None if the file does not exist.

    Raises OSError if permission is missing.
    """
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


def _curves(entries: list[JsonObject]) -> list[schemas.Curve]:
    """Return the learning curve of every quantity with two or more measurements.

    Training curves come before validation curves.
    """
    points: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for entry in entries:
        split = "validation" if isinstance(entry.get("validation"), dict) else "training"
        values = entry["validation"] if split == "validation" else entry
        for metric, value in values.items():
            if metric in COUNTERS or f"{metric}_per_second" in values or not metric.isprintable():
                continue
            if _is_finite(entry["step"]) and _is_finite(value):
                points.setdefault((split, metric), []).append((entry["step"], value))
    return [
        schemas.Curve.model_validate({"metric": metric, "split": split, "steps": steps, "values": values})
        for (split, metric), curve in sorted(points.items(), key=lambda item: item[0][0])
        for steps, values in [zip(*_thin_out(curve), strict=True)]
    ]


def _is_finite(value: object) -> bool:
    """Return True if a measured number is finite and fits into a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _thin_out(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most POINTS evenly spaced points of a curve, including the first and the last."""
    if len(points) <= MAX_POINTS:
        return points
    return [points[round(at * (len(points) - 1) / (MAX_POINTS - 1))] for at in range(MAX_POINTS)]
