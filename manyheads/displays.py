"""Tables of results in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from manyheads.files import JsonObject

MAX_ROWS = 60  # maximum number of rows that are shown; below them, a line states the number of further rows


def html_table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table of the given rows. Floats have four decimal places, and numbers are aligned on the right.

    head  names of the columns
    """
    above = "".join(f"<th style='text-align: left'>{escape(str(name))}</th>" for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MAX_ROWS])
    more = f"<p>{len(rows) - MAX_ROWS:,} more rows</p>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{above}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        return f"<td style='text-align: right'>{text}</td>"
    return f"<td style='text-align: left'>{'' if value is None else escape(str(value))}</td>"


class Table(list[JsonObject]):
    """Rows of a table, each a dictionary. Notebooks show a table with one column for each key."""

    def _repr_html_(self) -> str:
        head = list(dict.fromkeys(key for row in self for key in row))
        return html_table(head, [[row.get(key) for key in head] for row in self])
