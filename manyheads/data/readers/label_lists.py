"""Parser of the labels of one item in a multi-label data set: a list, or a text with a list or with separators.

["dog", "water"]     a list of JSON or Parquet, or a list, tuple or set in memory
"['dog', 'water']"   a list as pandas writes it, or as JSON text
dog|water            names with a separator
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterable

from manyheads.data.readers.rows import BadRow, Cells
from manyheads.errors import UserError
from manyheads.files import parse_json

SEPARATOR = "|"  # separates the labels of an item with several labels
SEPARATED = f"separate the labels with {SEPARATOR}, or write a list such as ['a', 'b']"
OTHERS = re.compile("[,;]")  # separators that other tools use
_FLAGS = {"0", "1", "0.0", "1.0", "False", "True"}
_FLAG_TEXT = re.compile(r"[01](\s*[,;\s]\s*[01])+")
_TRUE = ("1", "1.0", "True")
_JOINED = re.compile(r"""['"]\s+['"]""")  # strings without a comma between them, as NumPy prints them


def labels_in(value: object, name: str) -> list[object]:
    """Return the list of labels in a table cell. A missing or blank cell gives an empty list.

    name  column name for error messages

    Raises BadRow for a list that cannot be parsed, and for a multi-hot vector such as [0, 1, 0], which has no names.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return []
    if isinstance(value, str):
        listed = listed_in(value)
        if listed is None and value.strip()[:1] in ("[", "{"):
            raise BadRow(f"expected a list of labels in {name!r}, found: {value[:40]!r}", SEPARATED)
        value = [label for label in value.split(SEPARATOR) if label.strip()] if listed is None else listed
    labels = list(value) if isinstance(value, list | tuple | set) else [value]
    flags = len(labels) > len({*map(repr, labels)}) and _FLAGS.issuperset(map(str, labels))
    if flags or any(isinstance(label, str) and _FLAG_TEXT.fullmatch(label.strip()) for label in labels):
        raise BadRow(f"{name!r} has a zero or one for each label", f"write the names of the labels; {SEPARATED}")
    return labels


def label_cell(cells: Cells, column: str | tuple[str, ...]) -> object:
    """Return the cell of the label column. For several columns, return the names of the columns with a 1.

    Raises BadRow for a cell of several columns that is neither 0 nor 1.
    """
    if isinstance(column, str):
        return cells.get(column)
    flags = {name: str(cells.get(name)).strip().capitalize() for name in column}
    for name, flag in flags.items():
        if flag not in _FLAGS:
            raise BadRow(f"expected 0 or 1 in {name!r}, found {repr(cells.get(name))[:40]}", "write 0 or 1")
    return [name for name, flag in flags.items() if flag in _TRUE]


def listed_in(text: str) -> list[object] | tuple[object, ...] | set[object] | None:
    """Return the list that a text contains in the notation of JSON or Python; None if it contains no list."""
    if text.strip()[:1] not in ("[", "(", "{"):
        return None
    for parse in (parse_json, ast.literal_eval):
        try:
            value = None if _JOINED.search(text) else parse(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, list | tuple | set):
            return value
    return None


def check_separators(items: Iterable[tuple[str, ...]], names: Collection[str], place: object) -> None:
    """Raise UserError if labels such as "dog, water" look like several labels joined by a comma or a semicolon.

    A label looks so if one of its parts also occurs as a label. If no item has several labels and at least half of
    the labels contain a comma or a semicolon, all these labels look so.

    items  labels of each item
    names  label names that the user has listed; they may contain commas and semicolons
    place  path of the data for the error message
    """
    kinds = {*items}
    labels = {label for kind in kinds for label in kind}
    combined = sorted(label for label in labels.difference(names) if OTHERS.search(label))
    found = [label for label in combined if not labels.isdisjoint(part.strip() for part in OTHERS.split(label))]
    if 2 * len(combined) >= len(labels) and all(len(kind) <= 1 for kind in kinds):
        found = combined
    if found:
        raise UserError(
            f"{place}: found labels such as {found[0]!r}; {SEPARATED}. If a comma belongs to a name, list all names "
            "with names="
        )
