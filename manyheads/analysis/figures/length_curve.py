"""How well strings come out that are longer than those trained on: curves of recorded runs, beside each other.

python -m manyheads.analysis.figures.length_curve OUT.png RUN/result.json ...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURES = {
    "accuracy": "characters in place",
    "exact_match": "whole strings",
    "forced_accuracy": "next characters, given the ones before",
}


def curve(record: Mapping[str, Any], measure: str) -> tuple[list[int], list[float]]:
    """Lengths and values of a measure in a run's record. Raises ValueError where it was not measured."""
    measured: dict[str, float] = record.get("curve", {}).get(measure, {})
    if not measured:
        raise ValueError(f"the record of {record.get('recipe')} has no {measure} by length: name runs of universal/...")
    return [int(length) for length in measured], list(measured.values())


def draw(records: Mapping[str, Mapping[str, Any]], path: str | Path) -> None:
    """A picture with a panel for each measure and in it a curve for each record, under its name. The line in grey is
    the longest string that was trained on; the one below, what guessing digits gives."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(MEASURES), 3.6), layout="constrained")
    panels = figure.subplots(1, len(MEASURES), sharey=True)
    for panel, (measure, title) in zip(panels, MEASURES.items(), strict=True):
        for (name, record), marker in zip(records.items(), "osD^vPX*<>" * len(records), strict=False):
            lengths, values = curve(record, measure)
            panel.plot(lengths, values, marker=marker, markersize=4, label=name)
            panel.axvline(record["data"]["longest"], color="0.6", linewidth=1)
        if measure != "exact_match":
            panel.axhline(0.1, color="0.6", linewidth=1, linestyle=":")
        panel.set(title=title, xlabel="length of the input", ylim=(-0.03, 1.03))
    panels[0].set(ylabel="share")
    panels[0].legend(frameon=False).set_in_layout(False)  # a long name must not squeeze the panels
    figure.savefig(path, dpi=150)


def label(record: Mapping[str, Any]) -> str:
    """`universal`, or with what else was set: `universal, network.steps=6`."""
    settings = {key: value for key, value in record["overrides"].items() if key not in ("model", "threads")}
    return ", ".join([record["data"]["model"], *(f"{key}={value}" for key, value in settings.items())])


def main(out: str, *runs: str) -> int:
    try:
        records = [json.loads(Path(run).read_text(encoding="utf-8")) for run in runs]
        for record in records:
            curve(record, "accuracy")  # before a label is made of what may be another recipe's
        draw({label(record): record for record in records}, out)
    except (ValueError, OSError) as error:
        print(f"length_curve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit("usage: python -m manyheads.analysis.figures.length_curve OUT.png RUN/result.json ...")
    raise SystemExit(main(*sys.argv[1:]))
