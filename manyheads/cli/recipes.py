"""The command `manyheads recipes`: list what can be trained, or describe one recipe."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from manyheads.cli.output import document
from manyheads.cli.parser import JSON, Flag, Positional, Verbs
from manyheads.core.config import as_dict
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.runs.recipe import Recipe

SCREEN, WIDTH = 40, 100  # maximum numbers of lines and of characters in a line
MAIN = 10
# Settings of different tasks in order of importance. The first ten that a recipe has are its main settings.
IMPORTANT = (
    "data", "algorithm", "model", "longest", "offsets", "source", "target", "locale", "training.steps",
    "training.epochs", "training.learning_rate", "preset", "vocabulary", "block", "rows", "batch_tokens", "batch_items",
    "teacher", "items", "beam", "tuned", "length", "share", "frames", "slit", "size", "max_length", "smoothing",
    "training.warmup", "training.patience", "training.seed",
)  # fmt: skip
NEXT = "manyheads recipes NAME shows the command, the main settings and the best results of NAME"
RESULTS = "best measured results (score; settings that differ; time)"


def add(verbs: Verbs) -> None:
    verbs.add(
        "recipes", _recipes, "list what can be trained, or show the command, settings and results of a recipe", JSON,
        Positional("NAME", "recipe or group of recipes to show", "recipe", nargs="?"),
        Flag("--all", "list every recipe, or every setting and result of NAME"),
        example="manyheads recipes translation",
    )  # fmt: skip


def _recipes(options: argparse.Namespace) -> None:
    from manyheads.tasks.registry import FAMILIES, RECIPES, find, variants

    name = options.recipe
    if name is not None and not variants(name):
        find(name)
    if options.json:
        if name in RECIPES:
            return document(_record(name, RECIPES[name]))
        return document([_record(row, RECIPES[row]) for row in (RECIPES if name is None else variants(name))])
    if name in RECIPES:
        lines = _described(name, RECIPES[name], variants(name), options.all)
    elif name is not None or options.all:
        lines = [*_rows(variants(name) if name is not None else list(RECIPES)), "", NEXT]
    else:
        lines = []
        for heading, families in FAMILIES.items():
            lines += [f"{heading}:", *(f"  {family:<22}{trains}" for family, trains in families.items()), ""]
        lines.append(NEXT)
    print("\n".join(lines))


def _record(name: str, recipe: Recipe) -> JsonObject:
    from manyheads.runs.meanings import meaning
    from manyheads.runs.overrides import leaves
    from manyheads.tasks.measured import measured

    settings = as_dict(recipe.config)
    return {
        "recipe": name, "paper": recipe.paper, "trains": recipe.summary, "about": recipe.text,
        "command": recipe.command(name), "needs": recipe.needs, "settings": settings,
        "meanings": {key: meaning(recipe.config, key) for key, _ in leaves(settings)}, "measured": measured(name),
    }  # fmt: skip


def _described(name: str, recipe: Recipe, variants: list[str], everything: bool) -> list[str]:
    from manyheads.tasks.measured import measured

    about = _wrapped("Trains", f"{recipe.summary} ({recipe.paper}). {recipe.text}".split(), "")
    needs = [] if recipe.needs == "nothing" else ["", *_wrapped("It needs", f"{recipe.needs}.".split(), "")]
    lines = [recipe.command(name), "", *about, *needs, "", *_settings(recipe, everything)]
    below = ["", "variants:", *_rows(variants)] if variants else []
    below += ["", f"manyheads recipes {name} --all lists every setting and its meaning"] if not everything else []
    results = measured(name)
    # the results get the rest of the screen, at most eight lines
    room = min(8, SCREEN - len(lines) - len(below) - 2)
    shown = _results(results, 1000 if everything else room)
    return [*lines, *(["", f"{RESULTS}:", *shown] if shown else []), *below]


def _settings(recipe: Recipe, everything: bool) -> Iterator[str]:
    """Yield lines with settings, their defaults and their meanings: every setting, or the main settings."""
    from manyheads.runs.meanings import meaning, short
    from manyheads.runs.overrides import leaves, setting_words

    config = recipe.config
    settings = dict(leaves(as_dict(config)))
    unused = [key for key in ("training.steps", "training.epochs") if settings[key] is None]
    if "data" in recipe.requires:
        unused += ["size", "locale"]  # of the embedded corpus
    main = [key for key in IMPORTANT if settings.get(key, {}) != {} and key not in unused][:MAIN]
    keys = list(settings) if everything or not main or len(settings) <= MAIN else main
    texts = {key: shlex.quote(f"{key}={setting_words(settings[key])}") for key in keys}
    column = min(34, max(map(len, texts.values())) + 4)
    yield "settings and their defaults:" if len(keys) == len(settings) else "main settings and their defaults:"
    for key, text in texts.items():
        words = meaning(config, key)
        words = (words if everything else short(words)).replace("None:", "none:")
        first = f"  {text}".ljust(column)
        if len(first) > column:
            yield first
            first = " " * column
        yield from _wrapped(first, words.split())


def _results(results: list[JsonObject], room: int) -> list[str]:
    """Return the lines of the best results that fit into `room` lines. The recipe's own settings come first."""
    lines: list[str] = []
    for result in sorted(results, key=lambda found: bool(found["settings"])):
        words = [shlex.quote(setting) for setting in result["settings"]]
        words += [" ".join(map(shlex.quote, result["options"][i : i + 2])) for i in (0, 2) if result["options"][i:]]
        score = f"  {result['metric']} {result['score']}".ljust(30)
        entry = _wrapped(score, [*(words or ["default settings"]), f"({result['time']})"])
        lines += entry if len(lines) + len(entry) <= room else []
    return lines


def _rows(names: list[str]) -> list[str]:
    """Return a row for each recipe, with its summary and its best score. The rows are grouped by the data they need."""
    from manyheads.tasks.measured import measured
    from manyheads.tasks.registry import RECIPES

    groups: dict[str, list[str]] = {}
    column = max(map(len, names)) + 3
    for name in names:
        needs = RECIPES[name].needs
        group = groups.setdefault(needs, _heading(needs))
        best = [f"{b['metric']} {b['score']}", f"({b['time']})"] if (b := next(iter(measured(name)), None)) else []
        summary = f"{RECIPES[name].summary}{';' if best else ''}"
        group += _wrapped(f"  {name}".ljust(column), [*summary.split(), *best])
    return [line for lines in groups.values() for line in lines]


def _heading(needs: str) -> list[str]:
    return ["without data:"] if needs == "nothing" else _wrapped("with", f"{needs}:".split())


def _wrapped(first: str, words: list[str], indent: str | None = None) -> list[str]:
    """Return lines of at most `WIDTH` characters that end between words.

    indent  beginning of all lines but the first; None: spaces below the first line's beginning
    """
    lines, indent = [first], " " * (len(first) + 1) if indent is None else indent
    for word in words:
        if len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(indent + word)
        else:
            lines[-1] += f" {word}"
    return lines
