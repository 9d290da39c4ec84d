"""Curves of the accuracy on digit strings longer than those in training, from the records of finished runs.

On the command line: `python -m papers.universal curve RUN RUN --out lengths.png`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyheads.analysis.drawing import save
from manyheads.errors import UserError, extra
from manyheads.files import read_json

Record = Mapping[str, Any]
MEASURES = {
    "accuracy": "correct characters",
    "exact_match": "whole strings",
    "forced_accuracy": "next characters, given the previous ones",
}
# These metrics exist only for models with adaptive halting.
COLUMNS = 3  # panels side by side
STEPS = {"encoder_steps": "steps of the encoder", "decoder_steps": "steps of the decoder"}


def read_records(runs: Sequence[str | Path]) -> list[tuple[str, Record]]:
    """Read the records of runs, given as run directories or result.json files. Return (curve name, record) pairs.

    The name of a curve is the model with the settings that differ from the defaults: `universal, network.steps=6`. If
    the runs belong to several recipes, the name starts with the recipe. If names coincide, the path is added. Raises
    UserError for a file that is not the record of a run on digit strings.
    """
    files = [Path(run) / "result.json" if Path(run).is_dir() else Path(run) for run in runs]
    records = []
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: no such file: expected a finished run of universal/..., or its result.json")
        record = read_json(file, "expected the record of a run")
        if not isinstance(record, dict):
            raise UserError(f"{file}: expected the record of a run, a JSON object")
        try:
            for measure in MEASURES:
                curve(record, measure)
            _name(record)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        records.append(record)
    names = [_name(record) for record in records]
    recipes = [record["recipe"] for record in records]
    names = recipes if len({*recipes}) == len(recipes) > 1 else names
    counts = Counter(names)
    names = [name if counts[name] == 1 else f"{name} ({run})" for name, run in zip(names, runs, strict=True)]
    return list(zip(names, records, strict=True))


def curve(record: Record, measure: str) -> tuple[list[int], list[float]]:
    """Return the string lengths and the value of a metric at each length, from the record of a run.

    Raises UserError if the record does not contain the metric.
    """
    curves = record.get("curve")
    measured = curves.get(measure) if isinstance(curves, dict) else None
    if not isinstance(measured, dict) or not measured:
        raise UserError(
            f"the record of {record.get('recipe')} has no {measure} by length: expected runs of universal/..."
        )
    lengths = [int(length) for length in measured]
    values = [value for value in measured.values() if isinstance(value, int | float)]
    if len(values) < len(lengths):
        raise UserError(f"{measure} by length: expected numbers, found {measured}")
    return lengths, values


def draw(records: Sequence[tuple[str, Record]], path: str | Path) -> None:
    """Draw a panel for each metric, with a curve for each (name, record) pair.

    For models with adaptive halting, two more panels show the mean number of steps per position. The grey line marks
    the longest string in training, and the dotted line the accuracy of guessing digits at random.
    """
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    measures = MEASURES | {name: title for name, title in STEPS.items() if any(name in r["curve"] for _, r in records)}
    rows = -(-len(measures) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 3.6 * rows + 0.2 * len(records)), layout="constrained")
    panels = figure.subplots(rows, COLUMNS).ravel()
    for panel in panels[len(measures) :]:
        panel.axis("off")
    for panel, (measure, title) in zip(panels, measures.items(), strict=False):
        for number, ((name, record), marker) in enumerate(zip(records, "osD^vPX*<>" * len(records), strict=False)):
            if measure in STEPS and measure not in record["curve"]:
                continue
            lengths, values = curve(record, measure)
            wider = max(0, 2 - number)  # A curve stays visible below a later one with equal values.
            style = {"markersize": 4 + 2 * wider, "linewidth": 1.5 + wider, "color": f"C{number}"}
            panel.plot(lengths, values, marker=marker, label=name, **style)
            panel.axvline(record["data"]["longest"], color="0.6", linewidth=1)
        if measure in STEPS:
            panel.set(title=title, xlabel="length of the input", ylim=(0, None))
            continue
        if measure != "exact_match":
            panel.axhline(0.1, color="0.6", linewidth=1, linestyle=":")
        panel.set(title=title, xlabel="length of the input", ylim=(-0.03, 1.03))
    panels[0].set(ylabel="share")
    figure.legend(handles=panels[0].get_lines()[: 2 * len(records) : 2], loc="outside lower center", frameon=False)
    save(figure, path)


def _name(record: Record) -> str:
    """Return the name of a run's curve, from the record of the run. Raises UserError for an incomplete record."""
    overrides, data = record.get("overrides"), record.get("data")
    if not (
        isinstance(overrides, dict)
        and isinstance(data, dict)
        and isinstance(data.get("longest"), int)
        and isinstance(record.get("recipe"), str)
        and isinstance(record.get("model") or data.get("model"), str)
    ):
        raise UserError(
            "the record lacks recipe, overrides, model or data.longest: expected finished runs of universal/..."
        )
    settings = {key: value for key, value in overrides.items() if key not in ("model", "threads")}
    return ", ".join([record.get("model") or data["model"], *(f"{key}={value}" for key, value in settings.items())])
