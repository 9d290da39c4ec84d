"""Best measured metrics of each recipe, as written by `python -m lab.best_results` from the records of runs."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files


def measured(recipe: str) -> list[str]:
    """Return at most eight lines with a recipe's best results, such as `en-de: bleu_13a 38.1, ... in 2.9 h`.

    The best result comes first.

    The list is empty for a recipe without measurements.
    """
    return _all().get(recipe, [])


@cache
def _all() -> dict[str, list[str]]:
    lines: dict[str, list[str]] = json.loads((files("manyheads.tasks") / "measured.json").read_text(encoding="utf-8"))
    return lines
