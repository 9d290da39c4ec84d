"""Tables of results in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.files import JsonObject

MAX_ROWS = 60  # maximum number of rows that are shown; below them, a line states the number of further rows

MAX_OPEN = 10  # maximum number of entries of a dictionary that is not folded at first


def html_table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table of the given rows. Floats have up to four decimal places; numbers are aligned on the right.

    head  names of the columns
    """
    above = "".join(f"<th style='text-align: left'>{escape(str(name))}</th>" for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MAX_ROWS])
    more = f"<p>{len(rows) - MAX_ROWS:,} more rows</p>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{above}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:,}" if isinstance(value, int) else decimal(value)
        return f"<td style='text-align: right'>{text}</td>"
    return f"<td style='text-align: left'>{'' if value is None else escape(str(value))}</td>"


def decimal(value: float) -> str:
    """Return a number with four decimal places, without decimal places from 1,000, with three digits below 0.001.

    >>> decimal(0.5), decimal(12345.6), decimal(0.00002)
    ('0.5000', '12,346', '2e-05')
    """
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.4f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Table(list[JsonObject]):
    """Rows of a table, each a dictionary. Notebooks show a table with one column for each key."""

    def _repr_html_(self) -> str:
        head = list(dict.fromkeys(key for row in self for key in row))
        return html_table(head, [[row.get(key) for key in head] for row in self])


class Record(JsonObject):
    """Dictionary that notebooks show as a table. Dictionaries inside can be folded; long ones are folded at first."""

    def _repr_html_(self) -> str:
        rows = [(key, value) for key, value in self.items() if not isinstance(value, dict)]
        inner = (
            f"<details{' open' * (len(value) <= MAX_OPEN)}><summary>{escape(str(key))}</summary>"
            f"{Record(value)._repr_html_()}</details>"
            for key, value in self.items() if isinstance(value, dict)
        )  # fmt: skip
        return (html_table(["", ""], rows) if rows else "") + "".join(inner)


class Confusion(NamedTuple):
    """Confusion matrix. Notebooks show it as a table with a row for each true label.

    labels  labels that occur
    counts  number of items (true label, predicted label); for several labels per item, a matrix for each label,
            (label, has the label, is predicted)
    """

    labels: tuple[str, ...]
    counts: NDArray[np.int64]

    def _repr_html_(self) -> str:
        rows = zip(self.labels, self.counts.tolist(), strict=True)
        if self.counts.ndim == 3:
            header = ["label", "neither", "predicted only", "true only", "both"]
            return html_table(header, [[label, *without, *within] for label, (without, within) in rows])
        return html_table(["true / predicted", *self.labels], [[label, *counts] for label, counts in rows])
