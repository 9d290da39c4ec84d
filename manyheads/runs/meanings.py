"""Reader of the meanings of settings, for help texts, from the docstrings of the configuration classes."""

from __future__ import annotations

import inspect
import re

from manyheads.core.config import DataclassInstance, is_config, values

_ENTRY = re.compile(r"([a-z_]+(?:, [a-z_]+)*) {2,}(\S.*)")


def meaning(config: DataclassInstance, key: str) -> str:
    """Return the meaning of a setting, such as training.steps, or an empty text if its docstring has none.

    An entry of a dictionary, such as model.dropout, has the meaning of the dictionary.
    """
    name, _, rest = key.partition(".")
    value = values(config)[name]
    if rest and is_config(value):
        return meaning(value, rest)
    return next((found[name] for found in map(_entries, type(config).__mro__) if name in found), "")


def short(text: str) -> str:
    """Return the first part of a meaning, up to its first full stop, semicolon or parenthesis."""
    return re.split(r"[.;] | \(", text, maxsplit=1)[0].rstrip(".")


def _entries(kind: type) -> dict[str, str]:
    """Return the meanings of settings by name, from the lines `name  meaning` of a class's docstring.

    An indented line continues the meaning before it.
    """
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        if match := _ENTRY.fullmatch(line):
            names = match[1].split(", ")
            entries |= dict.fromkeys(names, match[2])
        elif names and line.startswith("  "):
            entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
        else:
            names = []
    return entries
