"""Table of all recipes by name, and their families."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module

from manyheads.errors import UserError
from manyheads.runs.recipe import Recipe
from manyheads.tasks.info import FINE_TUNED, OWN_DATA, PUBLISHED
from manyheads.tasks.table import TASKS

RECIPES: dict[str, Recipe] = {
    name: recipe
    for task in TASKS
    for name, recipe in import_module(f"manyheads.tasks.{task.name}.recipes").RECIPES.items()
}
# heading of the list of recipes -> name of a family of recipes -> description
FAMILIES = {
    heading: {name: about for task in TASKS for name, about in task.families.get(heading, {}).items()}
    for heading in (OWN_DATA, FINE_TUNED, PUBLISHED)
}


def variants(family: str) -> list[str]:
    """Return the names of the recipes `FAMILY/...`."""
    return [name for name in RECIPES if name.startswith(f"{family}/")]


def is_for_any_data(name: str) -> bool:
    """Return True if a recipe is meant for the user's data, not for a certain data set or experiment."""
    return name in FAMILIES[OWN_DATA] or name in FAMILIES[FINE_TUNED]


def find(name: str, recipes: Mapping[str, Recipe] = RECIPES) -> Recipe:
    """Return the recipe with the given name. Raises UserError, with a similar name, if there is none."""
    if name in recipes:
        return recipes[name]
    if members := [recipe for recipe in recipes if recipe.startswith(f"{name}/")]:
        raise UserError(f"{name!r} is a group of recipes: choose {', '.join(members)}")
    last = [recipe for recipe in recipes if recipe.rpartition("/")[2] == name]
    close = last or get_close_matches(name, [*recipes, *(recipe.partition("/")[0] for recipe in recipes)], n=1)
    others = "`manyheads recipes` lists them" if recipes is RECIPES else f"expected one of {', '.join(recipes)}"
    hint = f"did you mean {' or '.join(close)}?" if close else others
    raise UserError(f"unknown recipe {name!r}: {hint}")
