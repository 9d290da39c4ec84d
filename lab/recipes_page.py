"""Tables of docs/reference/recipes.md and docs/reference/settings.md, from the recipes and the docstrings.

`make docs` puts them into the pages of the site. The files in docs/reference have a marker in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from manyheads.core.config import plain
from manyheads.runs.meanings import meaning
from manyheads.runs.overrides import leaves, setting_words
from manyheads.tasks.measured import measured
from manyheads.tasks.registry import FAMILIES, RECIPES
from manyheads.training.config import TrainingConfig
from papers import recipes as papers


def recipes_table() -> str:
    """Return a table for each heading of `manyheads recipes`, and one for the recipes of papers."""
    parts = []
    for heading, families in FAMILIES.items():
        rows = ["| recipe | trains | paper | needs | best score |", "| --- | --- | --- | --- | --- |"]
        for name, recipe in RECIPES.items():
            if name.partition("/")[0] in families:
                best = next(iter(measured(name)), None)
                score = f"{best['metric']} {best['score']} ({best['time']})" if best else ""
                rows.append(f"| `{name}` | {recipe.summary} | {recipe.paper} | {recipe.needs} | {score} |")
        parts.append("\n".join([f"## {heading.capitalize()}", "", *rows]))
    rows = ["| command | trains | paper | needs |", "| --- | --- | --- | --- |"]
    for name, recipe in papers.RECIPES.items():
        rows.append(f"| `{recipe.program} {name}` | {recipe.summary} | {recipe.paper} | {recipe.needs} |")
    text = "Run these commands in a clone of the project, with the options of `manyheads train`."
    parts.append("\n".join(["## Reproduce a figure or table of a paper", "", text, "", *rows]))
    return "\n\n".join(parts)


def settings_tables() -> str:
    """Return a table of the settings of the training loop, and one for each kind of recipe."""
    training = TrainingConfig(epochs=1, schedule="constant")
    parts = [f"## Training loop\n\n{_table(training, 'training.', _defaults(TrainingConfig))}"]
    kinds: dict[type, list[str]] = {}
    for name, recipe in papers.ALL.items():
        kinds.setdefault(type(recipe.config), []).append(name)
    for kind, names in kinds.items():
        config = papers.ALL[names[0]].config
        title = f"## {', '.join(f'`{name}`' for name in names)}"
        parts.append(f"{title}\n\n{_table(config, '', _defaults(kind))}")
    return "\n\n".join(parts)


def _defaults(kind: Any) -> dict[str, Any]:
    values = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(kind)}
    return dict(leaves({name: plain(value) for name, value in values.items() if name != "training"}))


def _table(config: Any, prefix: str, defaults: dict[str, Any]) -> str:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for key, value in defaults.items():
        text = meaning(config, key).replace("None:", "none:").replace("|", "\\|")
        rows.append(f"| `{prefix}{key}` | `{setting_words(value)}` | {text} |")
    return "\n".join(rows)


MARKER = "<!-- tables -->"
# by the name of the page in docs
TABLES: dict[str, Callable[[], str]] = {"reference/recipes": recipes_table, "reference/settings": settings_tables}


def with_tables(page: str, text: str) -> str:
    """Return the text of a page with its tables in place of the marker. Other pages remain as they are."""
    if page not in TABLES:
        return text
    assert text.count(MARKER) == 1, f"{page}: expected {MARKER} once, found {text.count(MARKER)}"
    return text.replace(MARKER, TABLES[page]())
