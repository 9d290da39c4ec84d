"""Measurements as JSON records.

`runs/` (`result.json` of a run), `probes/`, `bench/`, `survival/` (kills and faults), `planning/` (a plan and its
measurement), `service/` (attacks), and `peers/` (a recipe run by another library). All published scores come from
these records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from papers.rivals.recipes import RIVAL_ROWS, RIVALS

RESULTS = Path(__file__).parent / "results"
PERCENT = ("bleu_13a", "bleu_moses_lc", "chrf")  # between 0 and 100; other metrics are fractions or losses
# 97.5% quantile of Student's t, by number of seeds
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
# settings that say where, on what and how often to look, not how
UNTOLD = ("data", "threads", "workers", "source", "target", "seed", "validate_every", "checkpoint_every", "log_every")


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95% interval of the mean of at least two values (Student's t)."""
    return STUDENT[len(values)] * stdev(values) / len(values) ** 0.5


def records(kind: str = "runs") -> list[dict[str, Any]]:
    """The records of one kind, by file name."""
    folder = RESULTS / kind
    if not folder.is_dir():
        return []
    whole = (path for path in folder.iterdir() if path.name.endswith(".json") and path.name[0] != ".")
    paths = sorted(whole, key=lambda path: path.name)
    return [_as_typed(json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def _as_typed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with overrides as the user types them.

    `translation/rivals` refuses the settings of its rows, such as a preset: users type `rows=NAME` instead. The
    learning rate is left out if it is the recipe's.
    """
    if record.get("recipe") != "translation/rivals":
        return record
    given = record["overrides"].items()
    name = next(name for name, row in RIVAL_ROWS.items() if row.items() <= given)
    usual = {"training.learning_rate": RIVALS.training.learning_rate, **RIVAL_ROWS[name]}
    return {**record, "overrides": {**dict(item for item in given if item not in usual.items()), "rows": name}}


def matching(recipe: str, *settings: str, alone: bool = False) -> list[dict[str, Any]]:
    """Return the records of a recipe with these settings, written as on the command line.

    settings  "items=10000", "init=NAME" (the initial model), "precision=bf16", "source=en", "target=de",
              "scored=test" (the split of the scores)
    alone     True: omit records with other settings, a precision other than float32 or an initial model; runs that
              differ in UNTOLD settings (seeds, threads) match
    """
    return [record for record in records() if record["recipe"] == recipe and _matches(record, settings, alone)]


def _matches(record: dict[str, Any], settings: tuple[str, ...], alone: bool) -> bool:
    data, found = record["data"], {"scored": "test", **record["overrides"]}
    found |= {"init": record.get("init"), "precision": _precision(record)}
    found |= {key: data[key] for key in ("source", "target") if key in data}
    expected = dict(setting.split("=", 1) for setting in settings)
    usual = {"init": "None", "precision": "float32", "scored": "test"}
    free = [key for key in found if key.removeprefix("training.") in UNTOLD]
    others = [key for key in found if key not in (*expected, *free) and usual.get(key) != str(found[key])]
    return all(key in found and str(found[key]) == value for key, value in expected.items()) and not (alone and others)


def score_table(rows: dict[str, list[dict[str, Any]]], *metrics: str) -> str:
    """Return a table of a few scores: one line for each name, with the mean and deviation over its records' seeds."""
    missing = [name for name, found in rows.items() if not found]
    if missing:
        raise ValueError(f"no record of {', '.join(missing)}")
    width = max(map(len, rows))
    lines = ["".join([" " * width, *(f"  {metric:13}" for metric in metrics), "  runs"])]
    for name, found in rows.items():
        score = scores(found)
        lines.append(
            "".join([f"{name:{width}}", *(f"  {score[metric]:13}" for metric in metrics), f"  {len(found):4}"])
        )
    return "\n".join(lines)


def measured(recipe: str) -> list[str]:
    """Return one line for each way that a recipe was run, and one for each ablation, in the order of the records."""
    runs = [record for record in records() if record["recipe"] == recipe]
    tables = ablations(runs)
    single = groups([record for record in runs if run_of(record) not in tables])
    return [*map(run_line, single), *map(table_line, tables.values())]


def run_line(group: list[dict[str, Any]]) -> str:
    """Describe runs that differ in their seed: `en-de: bleu_13a 38.1, ... in 2.9 h`."""
    return (
        f"{describe(group)}: {', '.join(f'{name} {score}' for name, score in scores(group).items())} in {took(group)}"
    )


def table_line(rows: list[dict[str, Any]]) -> str:
    """Describe the rows of an ablation: the range of each metric."""
    each = [scores([row]) for row in rows]
    ranges = {name: [score[name] for score in each] for name in each[0]}
    spans = ", ".join(f"{name} {min(values, key=float)} to {max(values, key=float)}" for name, values in ranges.items())
    return f"{describe_rows(rows)}, {len(rows)} rows: {spans} in {took(rows)} each"


def run_of(record: dict[str, Any]) -> str | None:
    """The run of `lab/evidence/runs.toml` that a record comes from, if it does."""
    name: str | None = record.get("evidence", {}).get("run")
    return name


def ablations(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs of which each record is a row of a paper's table: their records by the run."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for record in runs:
        if run := run_of(record):
            by_run.setdefault(run, []).append(record)
    return {run: rows for run, rows in by_run.items() if len(rows) > 1}


def shared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The settings that all rows of an ablation have."""
    first, *others = (row["overrides"] for row in rows)
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}


def groups(runs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Records that differ by their seed alone, together."""
    by_run: dict[str, list[dict[str, Any]]] = {}
    for record in runs:
        overrides = {k: v for k, v in record["overrides"].items() if not k.endswith("seed")}
        pair = record["data"].get("source"), record["data"].get("target")
        key = json.dumps([record["recipe"], overrides, _start(record), pair, _precision(record)])
        by_run.setdefault(key, []).append(record)
    return list(by_run.values())


def _start(record: dict[str, Any]) -> str:
    """Return the name of the run whose weights a run starts from, without its seed if both have the same, or ""."""
    return (record.get("init") or "").removesuffix(f"-{record['seed']}")


def describe(group: list[dict[str, Any]]) -> str:
    """`en-de`, `from MiniLM, training.epochs=2, 3 seeds`, or `default settings`."""
    data, settings, way = _about(group)
    return ", ".join([*data, *settings, *way]) or "default settings"


def name_and_settings(group: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the parts of `describe` as a short name, such as `en-de, 3 seeds`, and the settings."""
    data, settings, way = _about(group)
    return ", ".join([*data, *way]), ", ".join(settings) or "default settings"


def _about(group: list[dict[str, Any]]) -> tuple[list[str], list[str], list[str]]:
    """Return the data and first weights of a group of runs, their settings, and their precision and number of seeds."""
    record = group[0]
    data, init = record["data"], _start(record)
    about = [f"{data['source']}-{data['target']}"] if "source" in data else []
    about += [f"from {init}"] if init else []
    settings = {key.removeprefix("training."): value for key, value in record["overrides"].items()}
    way = [precision] if (precision := _precision(record)) != "float32" else []
    way += [f"{len(group)} seeds"] if len(group) > 1 else []
    return about, [f"{key}={value}" for key, value in settings.items() if key not in UNTOLD], way


def describe_rows(rows: list[dict[str, Any]]) -> str:
    """Return the common settings of the rows of an ablation, in the form of `describe`."""
    return describe([{**rows[0], "overrides": shared(rows)}])


def _precision(record: dict[str, Any]) -> str:
    return str(record.get("route", {}).get("precision", "float32"))


def scores(group: list[dict[str, Any]]) -> dict[str, str]:
    """Every metric of a group as text: the value, or mean and standard deviation over seeds."""
    texts = {}
    for name in group[0]["metrics"]:
        values = [record["metrics"][name]["value"] for record in group if name in record["metrics"]]
        digits = 1 if name in PERCENT else 3
        if not all(map(isfinite, values)):  # `stdev` does not accept them
            texts[name] = "nan"
            continue
        spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
        texts[name] = f"{mean(values):.{digits}f}{spread}"
    return texts


def took(group: list[dict[str, Any]]) -> str:
    """Return the duration of runs: one time, or the shortest to the longest."""
    seconds = [record["wall_seconds"] for record in group]
    return " to ".join(dict.fromkeys((duration(min(seconds)), duration(max(seconds)))))


def duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
