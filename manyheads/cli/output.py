"""Print the results of a command as JSON or as an aligned table."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.errors import UserError
from manyheads.files import PICTURES, JsonMapping, same_file

if TYPE_CHECKING:
    from manyheads.analysis.heat_maps import HeatMaps
    from manyheads.analysis.maps import AttentionMaps


def check_file(
    out: Path, suffixes: Sequence[str], expected: str, option: str = "--out", inputs: Iterable[str] = ()
) -> None:
    """Check the value of an option before any computation. Raise UserError if the file cannot be written.

    expected  description of the valid file names, for the message about a name with a wrong suffix
    inputs    inputs of the command, which the file must not replace; those that are no files are ignored
    """
    if any(same_file(out, given) for given in inputs):
        raise UserError(f"{option} {out} is an input: give another file")
    if out.suffix.lower() not in suffixes:
        raise UserError(f"{option} {out}: {expected}")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{option} {out}: directory {out.parent} not found: create it first")


def check_new(out: Path, option: str, *, overwrite: bool) -> None:
    """Raise UserError if the file exists, unless it may be replaced."""
    if out.exists() and not overwrite:
        raise UserError(f"{option} {out}: the file exists: give another name, or pass --overwrite")


def document(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def table(rows: Iterable[Sequence[object]]) -> None:
    """Print a table with aligned columns. Columns of numbers are aligned to the right."""
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    right = [all(re.fullmatch(r"[-+\d.,]*", cell) for cell in column[1:] or column) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    for row in cells:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        print("  ".join(aligned).rstrip())


REPORTS = (".html", *PICTURES, ".npz")  # suffixes of the files with the heat maps of an analysis


def report(
    found: HeatMaps, out: Path | None, *, as_json: bool, maps: Callable[[], Sequence[AttentionMaps]] = tuple
) -> None:
    """Print the largest values of heat maps, or all as JSON, and write them to a page, a picture or arrays (.npz).

    maps  function that returns the attention maps of the inputs, which a page also shows
    """
    if as_json:
        document(found.document())
    else:
        table(found.rows())
    if out is None:
        return
    if out.suffix.lower() == ".npz":
        return found.save(out)
    for note in found.page(out, *maps()) if out.suffix.lower() == ".html" else found.draw(out):
        print(f"manyheads: {note}", file=sys.stderr)


def print_scores(scores: Mapping[str, Mapping[str, JsonMapping]]) -> None:
    """Print the metrics of each split, with the name of the split before the signature."""
    rows = [
        (split, name, m["value"], m.get("signature", "")) for split, part in scores.items() for name, m in part.items()
    ]
    table(
        (name, f"{value:.4f}", ": ".join(dict.fromkeys(filter(None, (split, text)))))
        for split, name, value, text in rows
    )


def print_metrics(metrics: Mapping[str, JsonMapping]) -> None:
    table((name, f"{m['value']:.4f}", m.get("signature", "")) for name, m in metrics.items())
