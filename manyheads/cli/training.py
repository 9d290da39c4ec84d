"""`manyheads recipes` and `manyheads train`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from manyheads.cli.output import document, print_metrics
from manyheads.cli.parser import Verbs, positive

if TYPE_CHECKING:
    from manyheads.recipes.recipe import Recipe


def add(verbs: Verbs) -> None:
    recipes = verbs.add(
        "recipes", _recipes, "what can be trained, from which paper, with which measured score", as_json=True
    )
    recipes.add_argument("recipe", nargs="?", metavar="RECIPE", help="of this one also its text and its settings")
    train = verbs.add("train", _train, "train a model", ("RECIPE", "see `manyheads recipes`"))
    train.add_argument(
        "rest",
        nargs="*",
        metavar="key=value",
        help="settings, such as training.steps=100; `manyheads recipes RECIPE` lists them",
    )
    train.add_argument("--config", metavar="F.yaml", help="settings from a file; key=value wins")
    train.add_argument("--out", metavar="DIR", help="the run's directory (default: runs/RECIPE)")
    train.add_argument("--init", metavar="MODEL", help="start from another model's weights")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out")
    train.add_argument("--dry-run", action="store_true", help="show settings, size and estimates; train nothing")
    train.add_argument("--max-minutes", type=positive(float), metavar="M", help="stop after M minutes, resumable")
    train.add_argument("--precision", choices=("float32", "bf16"), metavar="P", help="float32 or bf16")
    train.add_argument(
        "--skip-bad-lines", action="store_true", help="leave out and count faulty lines or images of the data"
    )
    train.add_argument("--compile", action="store_true", help="compile the model (needs a C++ compiler)")


def _recipes(options: argparse.Namespace) -> None:
    from manyheads.recipes.table import RECIPES, find
    from manyheads.results import measured

    if options.recipe is not None:
        return _about(options.recipe, find(options.recipe), options.json)
    found = [
        {"recipe": name, "paper": r.paper, "trains": r.summary, "needs": r.needs, "measured": measured(name)}
        for name, r in RECIPES.items()
    ]
    if options.json:
        return document(found)
    for recipe in found:
        print(f"{recipe['recipe']}\n    {recipe['trains']} ({recipe['paper']})\n    needs {recipe['needs']}")
        for score in recipe["measured"]:
            print(f"    measured {score}")


def _about(name: str, recipe: Recipe, as_json: bool) -> None:
    import inspect

    from manyheads.recipes.overrides import as_dict, leaves, setting_words
    from manyheads.results import measured

    about, settings = inspect.cleandoc(recipe.about), as_dict(recipe.config)
    if as_json:
        return document({"recipe": name, "paper": recipe.paper, "about": about, "needs": recipe.needs,
                         "settings": settings, "measured": measured(name)})  # fmt: skip
    print(f"{about}\n\nneeds {recipe.needs}")
    for score in measured(name):
        print(f"measured {score}")
    print(f"\n{inspect.getdoc(recipe.config)}\n\nsettings, and what they are unless given:\n")
    for key, value in leaves(settings):
        print(f"    {key}={'none' if value is None else setting_words(value)}")


def _train(options: argparse.Namespace) -> None:
    import yaml

    from manyheads.recipes.overrides import from_arguments
    from manyheads.recipes.train import train

    report = train(
        options.recipe, from_arguments(options.rest), config=options.config, out=options.out, init=options.init,
        resume=options.resume, dry_run=options.dry_run, max_minutes=options.max_minutes, precision=options.precision,
        skip_bad_lines=options.skip_bad_lines, compile=options.compile,
    )  # fmt: skip
    if isinstance(report, Mapping) and "metrics" in report:
        print_metrics(report["metrics"])
    elif report:
        text = report if isinstance(report, str) else yaml.safe_dump(report, sort_keys=False, allow_unicode=True)
        print(text.rstrip("\n"))
