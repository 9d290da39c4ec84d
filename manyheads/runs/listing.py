"""Several runs at a glance: a table of the runs in a folder, and one picture of their learning curves."""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.analysis.drawing import HUES, new_figure, save
from manyheads.displays import Table
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.runs.result import RunResult
from manyheads.training.run_directory import LOCK, run_record, run_status, saved_run
from manyheads.training.run_log import read_metrics

if TYPE_CHECKING:
    from manyheads.training.record import Metrics

DEPTH = 4  # folders below the given one that are searched for runs
MAX_CURVES = 12  # runs in a picture, so that a reader can distinguish the curves
MAX_PLOTS = 3  # metrics in a picture


@dataclass(frozen=True)
class ListedRun:
    """A run of a folder.

    name        path below the folder
    settings    settings that the user gave, by their full keys
    validation  scores on the validation data: of the final weights, or of the last validation of an unfinished run
    test        scores of the final weights on the test data
    seconds     training time; None for a run that is unfinished
    state       "finished", "running" (a process trains there) or "unfinished"
    entries     entries of metrics.jsonl
    """

    name: str
    path: Path
    recipe: str
    settings: JsonMapping
    validation: dict[str, float]
    test: dict[str, float]
    seconds: float | None
    state: str
    step: int
    entries: list[JsonObject] = field(repr=False)


def list_runs(folder: str | Path = "runs") -> Table:
    """Return the runs in a folder and below it as a table, one dictionary for each run; notebooks display it.

    The keys are `run`, `recipe`, the settings that differ between the runs, the scores as `validation_NAME` and
    `test_NAME`, `seconds`, `step` and `state`. A score or setting that a run lacks is missing in its dictionary.

    Raises UserError if the folder does not exist or contains no run.

        >>> runs = manyheads.list_runs("runs")
        >>> sorted(runs[0])[:2]
        ['recipe', 'run']
    """
    runs = find_runs(Path(folder))
    differing = differing_settings(runs)
    rows = Table()
    for run in runs:
        scores = {f"validation_{name}": value for name, value in run.validation.items()}
        scores |= {f"test_{name}": value for name, value in run.test.items()}
        row = {"run": run.name, "recipe": run.recipe, **differing[run.name], **scores}
        rows.append(row | {"seconds": run.seconds, "step": run.step, "state": run.state})
    return rows


def find_runs(folder: Path) -> list[ListedRun]:
    """Return the runs in a folder and below it, by name. Raises UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: found no such folder; expected a folder with runs")
    patterns = ["/".join(["*"] * depth + ["state"]) for depth in range(DEPTH + 1)]
    places = sorted({state.parent for pattern in patterns for state in folder.glob(pattern) if state.is_dir()})
    states = {place: run_status(place) for place in places}
    runs = [_read(place, folder, state) for place, state in states.items() if state in ("finished", "unfinished")]
    if not runs:
        raise UserError(f"{folder}: found no runs; expected folders that `manyheads train` has written")
    return runs


def _read(path: Path, folder: Path, state: str) -> ListedRun:
    record, saved, entries = RunResult(run_record(path)), saved_run(path), read_metrics(path / "metrics.jsonl")
    name = path.name if path == folder else path.relative_to(folder).as_posix()
    test = next((metrics for split, metrics in record.scores.items() if split != "validation"), {})
    # The record of a run without test data may have its validation scores as its metrics.
    final = record.scores.get("validation") or ({} if test else record.get("metrics", {}))
    validated: dict[str, float] = next((e["validation"] for e in reversed(entries) if "validation" in e), {})
    return ListedRun(
        name, path, record.get("recipe") or saved.get("recipe", ""), record.get("overrides") or saved.get("given", {}),
        _values(final) or validated, _values(test), record.get("wall_seconds"),
        "running" if state == "unfinished" and _is_locked(path) else state,
        record.get("steps") or (entries[-1]["step"] if entries else 0), entries,
    )  # fmt: skip


def _values(metrics: Metrics) -> dict[str, float]:
    return {name: metric["value"] for name, metric in metrics.items()}


def _is_locked(path: Path) -> bool:
    """Return True if a process trains in the run directory."""
    try:
        with (path / "state" / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # The file does not exist, or cannot be read.
    return False


def differing_settings(runs: Sequence[ListedRun]) -> dict[str, JsonObject]:
    """Return, by the name of a run, its settings that are not the same in all runs of its recipe, by the last part of
    their keys.
    """
    found: dict[str, JsonObject] = {}
    for run in runs:
        alike = [other for other in runs if other.recipe == run.recipe]
        found[run.name] = {
            _short(key): value for key, value in run.settings.items()
            if any(other.settings.get(key, ...) != value for other in alike)
        }  # fmt: skip
    return found


def draw_curves(runs: Sequence[ListedRun], path: Path) -> list[str]:
    """Draw the learning curves of runs: one plot for each validation metric, with one line for each run.

    The metrics of most runs are drawn. Returns the names of the other metrics.

    Raises UserError for more than `MAX_CURVES` runs, or if no run was validated.
    """
    if len(runs) > MAX_CURVES:
        raise UserError(f"{len(runs)} runs are too many for a picture: expected at most {MAX_CURVES}; give a subfolder")
    curves = {run.name: [(e["step"], e["validation"]) for e in run.entries if "validation" in e] for run in runs}
    measured = Counter(name for points in curves.values() for name in dict.fromkeys(n for _, s in points for n in s))
    metrics = [name for name, _ in measured.most_common()]
    if not metrics:
        raise UserError("found no validation scores in these runs: there are no learning curves to draw")
    figure = new_figure(5.5 * min(len(metrics), MAX_PLOTS), 4.2)
    panels = figure.subplots(1, min(len(metrics), MAX_PLOTS), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=False):
        for number, run in enumerate(runs):
            points = [(step, scores[metric]) for step, scores in curves[run.name] if metric in scores]
            if points:
                style = "-" if number < len(HUES) else "--"
                panel.plot(*zip(*points, strict=True), style, color=HUES[number % len(HUES)], label=run.name,
                           marker="o", markersize=3)  # fmt: skip
        panel.set(xlabel="step", ylabel=f"validation {metric}")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    save(figure, path)
    return metrics[MAX_PLOTS:]


def _short(key: str) -> str:
    """Return the last part of a setting's key, or the whole key of a class weight, whose last part is a label."""
    return key if key.startswith("class_weights.") else key.rpartition(".")[2]
