"""The command `manyheads recipes`: list the recipes with their papers and measured scores."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from manyheads.cli.output import document
from manyheads.cli.parser import Verbs

if TYPE_CHECKING:
    from manyheads.runs.recipe import Recipe


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "recipes",
        _recipes,
        "list the recipes with their papers and measured scores",
        as_json=True,
        example="manyheads recipes translation/multi30k",
    )
    verb.add_argument("recipe", nargs="?", metavar="RECIPE", help="show this recipe's description and settings")


def _recipes(options: argparse.Namespace) -> None:
    from manyheads.tasks.measured import measured
    from manyheads.tasks.registry import RECIPES, find

    if options.recipe is not None:
        return _about(options.recipe, find(options.recipe), options.json)
    rows = [
        {"recipe": name, "paper": r.paper, "trains": r.summary, "needs": r.needs, "measured": measured(name)}
        for name, r in RECIPES.items()
    ]
    if options.json:
        return document(rows)
    for recipe in rows:
        print(f"{recipe['recipe']}\n    {recipe['trains']} ({recipe['paper']})\n    needs {recipe['needs']}")
        for score in recipe["measured"]:
            print(f"    measured {score}")


def _about(name: str, recipe: Recipe, as_json: bool) -> None:
    import inspect

    from manyheads.runs.overrides import as_dict, leaves, setting_words
    from manyheads.tasks.measured import measured

    text = f"Trains {recipe.summary} ({recipe.paper}).\n{inspect.cleandoc(recipe.about)}".rstrip()
    about = f"{recipe.command(name)}\n\n{text}"
    settings = as_dict(recipe.config)
    if as_json:
        return document({"recipe": name, "paper": recipe.paper, "about": about, "needs": recipe.needs,
                         "settings": settings, "measured": measured(name)})  # fmt: skip
    print(f"{about}\n\nneeds {recipe.needs}")
    for score in measured(name):
        print(f"measured {score}")
    print(f"\n{inspect.getdoc(recipe.config)}\n\nsettings and their defaults:\n")
    for key, value in leaves(settings):
        print(f"    {key}={'none' if value is None else setting_words(value)}")
