"""What was measured, as JSON records: `runs/` (`result.json` of a run), `probes/`, `bench/`, `survival/` (kills and
faults), `planning/` (a plan beside what was measured), `service/` (attacks on one), and `peers/`: a recipe of ours, run
by another library. All scores shown are theirs."""

from __future__ import annotations

import json
from importlib.resources import files
from statistics import mean, stdev
from typing import Any

PERCENT = ("bleu_13a", "bleu_moses_lc", "chrf")  # between 0 and 100; other metrics are fractions or losses
# settings that say where, on what and how often to look, not how
UNTOLD = ("data", "threads", "source", "target", "seed", "validate_every", "checkpoint_every", "log_every")


def records(kind: str = "runs") -> list[dict[str, Any]]:
    """The records of one kind, by file name."""
    folder = files("manyheads.results") / kind
    if not folder.is_dir():
        return []
    whole = (path for path in folder.iterdir() if path.name.endswith(".json") and path.name[0] != ".")
    paths = sorted(whole, key=lambda path: path.name)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def measured(recipe: str) -> list[str]:
    """One line for each way that a recipe was run: `en-de: bleu_13a 38.1, ... in 2.9 h`."""
    return [
        f"{describe(group)}: {', '.join(f'{name} {score}' for name, score in scores(group).items())} in {took(group)}"
        for group in groups(records())
        if group[0]["recipe"] == recipe
    ]


def groups(runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Records that differ by their seed alone, together."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for record in runs:
        overrides = {k: v for k, v in record["overrides"].items() if not k.endswith("seed")}
        pair = record["data"].get("source"), record["data"].get("target")
        key = json.dumps([record["recipe"], overrides, record.get("init"), pair, _precision(record)])
        by_run.setdefault(key, []).append(record)
    return list(by_run.values())


def describe(group: list[dict[str, Any]]) -> str:
    """`en-de`, `from MiniLM, training.epochs=2, 3 seeds`, or `as it is`."""
    record = group[0]
    data, init = record["data"], record.get("init")
    about = [f"{data['source']}-{data['target']}"] if "source" in data else []
    about += [f"from {init}"] if init else []
    settings = {key.removeprefix("training."): value for key, value in record["overrides"].items()}
    about += [f"{key}={value}" for key, value in settings.items() if key not in UNTOLD]
    about += [precision] if (precision := _precision(record)) != "float32" else []
    about += [f"{len(group)} seeds"] if len(group) > 1 else []
    return ", ".join(about) or "as it is"


def _precision(record: dict[str, Any]) -> str:
    return str(record.get("route", {}).get("precision", "float32"))


def scores(group: list[dict[str, Any]]) -> dict[str, str]:
    """Every metric of a group as text: the value, or mean and standard deviation over seeds."""
    texts = {}
    for name in group[0]["metrics"]:
        values = [record["metrics"][name]["value"] for record in group if name in record["metrics"]]
        digits = 1 if name in PERCENT else 3
        spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
        texts[name] = f"{mean(values):.{digits}f}{spread}"
    return texts


def took(group: list[dict[str, Any]]) -> str:
    """How long its runs took: one time, or the shortest to the longest."""
    seconds = [record["wall_seconds"] for record in group]
    return " to ".join(dict.fromkeys((duration(min(seconds)), duration(max(seconds)))))


def duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
