"""`python -m lab.best_results`: write each recipe's best measured results to manyheads/tasks/measured.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab.records import ablations, groups, records, run_line, run_of, table_line

FILE = Path(__file__).parents[1] / "manyheads" / "tasks" / "measured.json"
MAX_LINES = 8
# the metric that ranks the runs of a recipe is the first of these that they have; False: lower is better
RANKING = {
    "bleu_13a": True, "squad_f1": True, "entity_f1": True, "top1": True, "accuracy": True, "f1": True,
    "exact_match": True, "bits_per_byte": False, "loss": False,
}  # fmt: skip


def main() -> None:
    FILE.write_text(json.dumps(best_results(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def best_results() -> dict[str, list[str]]:
    """Return at most `MAX_LINES` lines for each recipe that has records, best first.

    Runs that were scored on validation data, to choose a setting, are left out if others were scored on test data.
    """
    runs = records()
    return {name: _lines([r for r in runs if r["recipe"] == name]) for name in sorted({r["recipe"] for r in runs})}


def _lines(runs: list[dict[str, Any]]) -> list[str]:
    runs = [run for run in runs if run["overrides"].get("scored") != "validation"] or runs
    tables = ablations(runs)
    single = groups([run for run in runs if run_of(run) not in tables])
    return [*map(run_line, sorted(single, key=_rank)), *map(table_line, tables.values())][:MAX_LINES]


def _rank(group: list[dict[str, Any]]) -> float:
    """Return a number that is smaller for better runs."""
    metrics = group[0]["metrics"]
    name = next((name for name in RANKING if name in metrics), None)
    if name is None:
        return 0.0
    mean = sum(run["metrics"][name]["value"] for run in group) / len(group)
    return -mean if RANKING[name] else mean


if __name__ == "__main__":
    main()
