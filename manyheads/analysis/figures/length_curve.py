"""How well strings come out that are longer than those trained on: curves of recorded runs, beside each other.

On the terminal: `manyheads curve RUN RUN --out lengths.png`.
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
    "accuracy": "characters in place",
    "exact_match": "whole strings",
    "forced_accuracy": "next characters, given the ones before",
}
STEPS = {"encoder_steps": "steps of the encoder", "decoder_steps": "steps of the decoder"}  # of models that may halt


def read_records(runs: Sequence[str | Path]) -> list[tuple[str, Record]]:
    """The records of runs, directories or their result.json, each with the name of its curve.

    That is `universal`, or with what else was set `universal, network.steps=6`; of several tasks, the recipe's name;
    and where several runs would have the same name, also the path. Raises UserError for what is no record of a run on
    digits.
    """
    files = [Path(run) / "result.json" if Path(run).is_dir() else Path(run) for run in runs]
    records = []
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: no such file; expected a finished run of universal/..., or its result.json")
        record = read_json(file, "expected the record of a run")
        if not isinstance(record, dict):
            raise UserError(f"{file}: expected the record of a run, an object")
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
    """Lengths and values of a measure in a run's record. Raises UserError where it was not measured."""
    curves = record.get("curve")
    measured = curves.get(measure) if isinstance(curves, dict) else None
    if not isinstance(measured, dict) or not measured:
        raise UserError(f"the record of {record.get('recipe')} has no {measure} by length: name runs of universal/...")
    lengths = [int(length) for length in measured]
    values = [value for value in measured.values() if isinstance(value, int | float)]
    if len(values) < len(lengths):
        raise UserError(f"{measure} by length: expected numbers, got {measured}")
    return lengths, values


def draw(records: Sequence[tuple[str, Record]], path: str | Path) -> None:
    """A picture with a panel for each measure and in it a curve for each (name, record), the names below. Where some
    may halt, two more panels have the mean steps of their positions. The line in grey is the longest string that was
    trained on; the dotted one, what guessing digits gives."""
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    measures = MEASURES | {name: title for name, title in STEPS.items() if any(name in r["curve"] for _, r in records)}
    figure = Figure(figsize=(4 * len(measures), 3.6 + 0.2 * len(records)), layout="constrained")
    panels = figure.subplots(1, len(measures))
    for panel, (measure, title) in zip(panels, measures.items(), strict=True):
        for number, ((name, record), marker) in enumerate(zip(records, "osD^vPX*<>" * len(records), strict=False)):
            if measure in STEPS and measure not in record["curve"]:
                continue
            lengths, values = curve(record, measure)
            panel.plot(lengths, values, marker=marker, markersize=4, label=name, color=f"C{number}")
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
    """What a run is called. Raises UserError for a record that lacks what is drawn."""
    overrides, data = record.get("overrides"), record.get("data")
    if not (
        isinstance(overrides, dict)
        and isinstance(data, dict)
        and isinstance(data.get("longest"), int)
        and isinstance(record.get("recipe"), str)
        and isinstance(record.get("model") or data.get("model"), str)
    ):
        raise UserError("it lacks its recipe, overrides, model or data.longest: name finished runs of universal/...")
    settings = {key: value for key, value in overrides.items() if key not in ("model", "threads")}
    return ", ".join([record.get("model") or data["model"], *(f"{key}={value}" for key, value in settings.items())])
