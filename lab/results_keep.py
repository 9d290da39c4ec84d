"""Record a run's result.json: `python -m lab.results_keep RUN NAME` writes `lab/results/runs/NAME.json`.

A result of another library goes to `peers/`, and a file of `python -m papers.heads --json` to `probes/`. Paths are
reduced to file names, since directories of a machine are private; fingerprints identify the data. A run whose training
measures accuracy also keeps its curves: `by_epoch`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePath
from statistics import mean
from typing import Any

from manyheads.files import read_json, write_json
from manyheads.training.run_log import read_metrics

RECORDS = Path(__file__).parent / "results"


def without_folders(value: Any) -> Any:
    """The same with every path cut to its last part; a preset, such as resnet/20-small, is none."""
    if isinstance(value, dict):
        return {key: item if key == "preset" else without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return PurePath(value).name if isinstance(value, str) and "/" in value else value


def by_epoch(metrics: Path) -> list[dict[str, dict[str, float]]]:
    """Of each epoch the means of its training's loss and accuracy, while it learnt, and the validation at its end.

    Empty where a training has no steps, or measures no accuracy, or was not validated at the ends of its epochs.
    """
    entries, epochs, training = read_metrics(metrics), list[dict[str, dict[str, float]]](), list[dict[str, Any]]()
    if len({entry["step"] / (entry.get("epoch") or 1) for entry in entries if "validation" in entry}) != 1:
        return []
    for entry in entries:
        if "loss" in entry:
            training.append(entry)
        elif "validation" in entry and training and all("accuracy" in part for part in training):
            means = {name: round(mean(part[name] for part in training), 5) for name in ("loss", "accuracy")}
            rounded = {name: round(value, 5) for name, value in entry["validation"].items()}
            epochs.append({"training": means, "validation": rounded})
            training = []
    return epochs


def keep(run: Path, name: str, **more: Any) -> Path:
    """The record, with what of `more` the run has not written itself; it is whole, or the one that was there."""
    source, kind = (run / "result.json", "runs") if run.is_dir() else (run, "probes")
    record = json.loads(source.read_text(encoding="utf-8"))
    for part in ("data", "overrides", "init", "model", "treebank"):
        if part in record:
            record[part] = without_folders(record[part])
    if kind == "runs" and (epochs := by_epoch(source.with_name("metrics.jsonl"))):
        record["by_epoch"] = epochs
    kept = RECORDS / ("peers" if "peer" in record else kind) / f"{name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, record | {key: value for key, value in more.items() if key not in record})
    return kept


def kept() -> dict[str, dict[str, Any]]:
    """The records of runs by their names, and those of peers as peers/NAME."""
    return {
        prefix + path.stem: read_json(path, "restore it")
        for prefix, kind in (("", "runs"), ("peers/", "peers"))
        for path in sorted((RECORDS / kind).glob("[!.]*.json"))  # those with a dot are not whole
    }


def place(name: str) -> Path:
    """Of a record, by its name as in `kept`."""
    return RECORDS / ("" if name.startswith("peers/") else "runs") / f"{name}.json"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m lab.results_keep RUN|PROBE.json NAME")
    print(keep(Path(sys.argv[1]), sys.argv[2]))
