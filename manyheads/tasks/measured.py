"""Reader of the best measured results of each recipe.

`python -m lab.best_results` writes their file from the records of finished runs.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from manyheads.files import JsonObject


def measured(recipe: str) -> list[JsonObject]:
    """Return at most eight measured results of a recipe, best first. The list is empty if nothing was measured.

    A result has these entries:

    metric    name of the main metric
    score     value of the main metric as text, with the spread over seeds
    value     value of the main metric as a number
    metrics   all metrics as text
    time      duration and machine of the training, such as `1.2 h, 1 core`
    settings  settings that differ from the recipe, as typed after `manyheads train RECIPE`
    options   options that differ from the recipe, as typed after the settings
    runs      number of runs, which differ only in their seed
    rows      number of rows, for an ablation table; it replaces `runs`
    """
    return _all().get(recipe, [])


@cache
def _all() -> dict[str, list[JsonObject]]:
    results: dict[str, list[JsonObject]] = json.loads(
        (files("manyheads.tasks") / "measured.json").read_text(encoding="utf-8")
    )
    return results
