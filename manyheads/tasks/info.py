"""Description of a task: its verb, recipes and predictors. All tables of tasks are derived from these descriptions.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Headings of the list of recipes. Recipes below the first two are for any data of the user.
OWN_DATA = "train on your data, or on small built-in data"
FINE_TUNED = "fine-tune a model on your data"
PUBLISHED = "reproduce results on published data sets"


class PredictorRow(NamedTuple):
    """Class of predictors, with the conditions for the models for which it is used.

    predictor  "module.below.tasks:Class". It is imported on first use, so that a translator, for example, starts
               without the code for images.
    families   model families, named as in `models/presets.py`, such as "bert"
    heads      names of the task heads that the predictor accepts, for a family whose models have different heads
    """

    predictor: str
    families: tuple[str, ...]
    heads: tuple[str | None, ...] = (None,)


@dataclass(frozen=True)
class TaskInfo:
    """Description of a task.

    verb        command that applies the trained models of the task, such as "translate"
    name        name of the folder of the task, whose module `recipes` contains its recipes
    families    heading -> name of a family of recipes -> description. A family is a recipe, its variants
                (`FAMILY/...`), or both
    predictors  classes of predictors. A model gets the class of the first row, among the rows of all tasks, whose
                conditions it fulfills
    served      True if the HTTP service has a route for the verb
    """

    verb: str
    name: str
    families: Mapping[str, Mapping[str, str]]
    predictors: tuple[PredictorRow, ...]
    served: bool = True
