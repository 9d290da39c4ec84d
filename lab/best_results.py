"""`python -m lab.best_results`: write each recipe's best measured results to manyheads/tasks/measured.json."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from lab.records import UNTOLD, ablations, groups, records, run_of, scores, shared, took
from manyheads.runs.overrides import leaves, setting_words
from manyheads.tasks.registry import RECIPES

FILE = Path(__file__).parents[1] / "manyheads" / "tasks" / "measured.json"
MAX_RESULTS = 8
VARIANTS = ("preset", "rows", "teacher", "distillation", "scratch")  # settings that choose what is trained
# the metric that ranks the runs of a recipe is the first of these that they have; False: lower is better
RANKING = {
    "bleu_13a": True, "squad_f1": True, "entity_f1": True, "top1": True, "accuracy": True, "f1": True,
    "exact_match": True, "accuracy_400": True, "bits_per_byte": False, "loss": False,
}  # fmt: skip


def main() -> None:
    FILE.write_text(json.dumps(best_results(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def best_results() -> dict[str, list[dict[str, Any]]]:
    """Return at most `MAX_RESULTS` results for each recipe that has records.

    There is one result, the best, for each language pair and each variant of it: settings in VARIANTS, and a training
    with or without `--init`. The languages of the recipe come first. Runs that were scored on validation data, to
    choose a setting, are left out if others were scored on test data.
    """
    runs = [run for run in records() if run["recipe"] in RECIPES]
    return {name: _results([r for r in runs if r["recipe"] == name]) for name in sorted({r["recipe"] for r in runs})}


def _results(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    runs = [run for run in runs if run["overrides"].get("scored") != "validation"] or runs
    tables = ablations(runs)
    found = groups([run for run in runs if run_of(run) not in tables])
    best = {_variant(group[0]): group for group in sorted(found, key=rank, reverse=True)}
    single = sorted(best.values(), key=lambda group: (*_variant(group[0])[:2], rank(group)))
    return [*map(_result, single), *map(_table, tables.values())][:MAX_RESULTS]


def main_metric(run: dict[str, Any]) -> str:
    """Return the name of the metric by which the runs of a recipe are ranked."""
    return next((name for name in RANKING if name in run["metrics"]), next(iter(run["metrics"])))


def rank(group: list[dict[str, Any]]) -> float:
    """Return a number that is smaller for better runs."""
    name = main_metric(group[0])
    value = mean(run["metrics"][name]["value"] for run in group)
    return -value if RANKING.get(name) else value


def _result(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe runs that differ in their seed."""
    name, texts = main_metric(group[0]), scores(group)
    value = mean(run["metrics"][name]["value"] for run in group)
    return {
        "metric": name, "score": texts[name], "value": round(value, 4), "time": _time(group), "runs": len(group),
        "settings": _settings(group[0], group[0]["overrides"]), "options": _options(group[0]), "metrics": texts,
    }  # fmt: skip


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe the rows of an ablation by the range of each metric."""
    name, each = main_metric(rows[0]), [scores([row]) for row in rows]
    spans = {
        metric: f"{min(found, key=float)} to {max(found, key=float)}"
        for metric in each[0]
        if (found := [texts[metric] for texts in each])
    }
    values = [row["metrics"][name]["value"] for row in rows]
    return {
        "metric": name, "score": spans[name], "value": max(values) if RANKING.get(name) else min(values),
        "time": f"{_time(rows)} each", "rows": len(rows), "settings": _settings(rows[0], shared(rows)),
        "options": _options(rows[0]), "metrics": spans,
    }  # fmt: skip


def _pair(run: dict[str, Any]) -> dict[str, str]:
    """Return the languages of a run that differ from those of its recipe."""
    config = RECIPES[run["recipe"]].config
    return {
        side: run["data"][side]
        for side in ("source", "target")
        if hasattr(config, side) and run["data"].get(side, getattr(config, side)) != getattr(config, side)
    }


def _variant(run: dict[str, Any]) -> tuple[str, ...]:
    """Return what distinguishes a variant: `--init` or not, languages other than the recipe's, and further settings."""
    init = "--init" if run.get("init") and RECIPES[run["recipe"]].init == "may" else ""
    given = {key: "" if key == "teacher" else str(run["overrides"][key]) for key in VARIANTS if key in run["overrides"]}
    return init, " ".join(_pair(run).values()), *(f"{key}={value}" for key, value in given.items())


def _settings(run: dict[str, Any], overrides: dict[str, Any]) -> list[str]:
    """Return the settings that differ from the recipe, as `key=value` can be typed."""
    told = {key: value for key, value in leaves(overrides) if key not in UNTOLD and key.split(".")[-1] not in UNTOLD}
    values = {**_pair(run), **told}
    return [f"{key}={setting_words(value)}" for key, value in values.items()]


def _options(run: dict[str, Any]) -> list[str]:
    precision = run.get("route", {}).get("precision", "float32")
    found = {"--init": run.get("init"), "--precision": None if precision == "float32" else precision}
    return [word for option, value in found.items() if value for word in (option, value)]


def _time(group: list[dict[str, Any]]) -> str:
    """Return the duration and the machine, such as `1.2 h, 1 core` or `7.5 min, H200`."""
    gpus = [run["hardware"].get("gpu") for run in group if run.get("route", {}).get("device") == "cuda"]
    if gpus:
        return f"{took(group)}, {str(gpus[0]).removeprefix('NVIDIA ').split()[0]}"
    threads = group[0]["hardware"]["threads"]
    return f"{took(group)}, {threads} core{'s' if threads > 1 else ''}"


if __name__ == "__main__":
    main()
