"""Best results measured for each recipe, as written by `python -m lab.best_results` from the records of finished
runs.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files


def measured(recipe: str) -> list[str]:
    """Return at most eight lines with the best results of a recipe, best first.

    A line reads, for example, `en-de: bleu_13a 38.1, ... in 2.9 h`. The list is empty if no result was measured.
    """
    return _all().get(recipe, [])


@cache
def _all() -> dict[str, list[str]]:
    lines: dict[str, list[str]] = json.loads((files("manyheads.tasks") / "measured.json").read_text(encoding="utf-8"))
    return lines
