"""Best results measured for each recipe, as written by `python -m lab.best_results` from the records of finished
runs.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from manyheads.files import JsonObject


def measured(recipe: str) -> list[JsonObject]:
    """Return at most eight results of a recipe. The best result is first; it is empty if nothing was measured.

    A result has these entries:

    metric, score, value  name of the main metric; its value as text, with the spread over seeds; and as a number
    metrics               all metrics as text
    time                  duration and machine of the training, such as `1.2 h, 1 core`
    settings, options     differences from the recipe, as typed after `manyheads train RECIPE`
    runs                  number of runs, which differ in their seed
    rows                  instead of `runs`, number of rows of an ablation table
    """
    return _all().get(recipe, [])


@cache
def _all() -> dict[str, list[JsonObject]]:
    results: dict[str, list[JsonObject]] = json.loads(
        (files("manyheads.tasks") / "measured.json").read_text(encoding="utf-8")
    )
    return results
