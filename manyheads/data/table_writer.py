"""Writer of table files in the formats .tsv, .csv, .jsonl and .parquet. Rows are written in blocks.

A CSV or TSV file stores every cell as text: a missing value as an empty cell, a list of words that the writer's caller
adds as words joined by spaces, and other lists and objects as JSON.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args, get_type_hints

import numpy as np

from manyheads.core.config import Hint
from manyheads.data.readers.rows import Cells
from manyheads.data.readers.splits import lone_surrogate
from manyheads.errors import UserError, extra

if TYPE_CHECKING:
    import pyarrow

WRITTEN = (".tsv", ".csv", ".jsonl", ".parquet")  # suffixes of the files that can be written
Write: TypeAlias = Callable[[Sequence[Cells]], None]
_BREAKS = "\t\r\n"  # characters that end a cell of a TSV file


class Layout(NamedTuple):
    """Columns of a table file, in order, and their types.

    columns  names of the columns of the user
    added    columns after them, with the types of their cells: a scalar, a NamedTuple, or a list of them
    schema   types of the user's columns in a Parquet file; None: text, or a format without types
    """

    columns: Sequence[str]
    added: Mapping[str, Hint]
    schema: pyarrow.Schema | None = None


def cell_fault(cells: Cells, suffix: str) -> str:
    """Return the reason why a file with this suffix cannot store a row; empty if it can."""
    for name, cell in cells.items():
        if suffix == ".tsv" and any(mark in name for mark in _BREAKS):
            return f"the name {name!r} has a tab or line break, which a .tsv file cannot store: rename the column"
        if suffix != ".parquet" and has_bytes(cell):
            return f"the column {name!r} has bytes, which a {suffix} file cannot store: choose a .parquet file"
        if isinstance(cell, str):
            if suffix == ".tsv" and any(mark in cell for mark in _BREAKS):
                return f"{name!r} has a tab or line break, which a .tsv file cannot store: choose a .csv file"
            if suffix != ".jsonl" and lone_surrogate(cell):
                return f"{name!r} has a character that is not valid UTF-8: choose a .jsonl file"
    return ""


def has_bytes(cell: object) -> bool:
    """Return True if a cell, or a part of it, is a file as bytes."""
    values = cell.values() if isinstance(cell, Mapping) else cell if isinstance(cell, list) else [cell]
    return any(isinstance(value, bytes) for value in values)


@contextmanager
def table_writer(file: Path, suffix: str, layout: Layout) -> Iterator[Write]:
    """Context manager that yields a function to write a block of rows to a new file, in the format of `suffix`."""
    if suffix == ".parquet":
        with _parquet(file, layout) as write:
            yield write
        return
    with file.open("w", newline="", encoding="utf-8") as out:
        if suffix == ".jsonl":
            yield lambda rows: out.writelines(f"{_json(dict(row))}\n" for row in rows)
            return
        names = [*layout.columns, *layout.added]
        writer = csv.writer(out, lineterminator="\n")

        def write_text(rows: Sequence[Cells]) -> None:
            cells = ([_text(row.get(name), layout.added.get(name)) for name in names] for row in rows)
            if suffix == ".csv":
                writer.writerows(cells)
            else:
                out.writelines("\t".join(map(_one_line, row)) + "\n" for row in cells)

        write_text([dict(zip(names, names, strict=True))])
        yield write_text


def schema_of(place: Path, rows: Sequence[Cells], earlier: pyarrow.Schema | None = None) -> pyarrow.Schema:
    """Return the types of Parquet columns for rows of Python values, united with the types of earlier rows.

    place  file for error messages

    Raises UserError for a column with values of several types.
    """
    with extra("parquet", "writing Parquet"):
        import pyarrow as pa
    fields = []
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            fields.append((name, pa.array([row.get(name) for row in rows]).type))
            found = pa.schema(fields[-1:])
            earlier = found if earlier is None else pa.unify_schemas([earlier, found], promote_options="permissive")
        except (pa.ArrowException, OverflowError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            fault = f"{place}: the column {name!r} has values that one Parquet column cannot store ({reason})"
            raise UserError(f"{fault}: choose a .jsonl file") from None
    return earlier


@contextmanager
def _parquet(file: Path, layout: Layout) -> Iterator[Write]:
    with extra("parquet", "writing Parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    schema = layout.schema or pa.schema([(name, pa.string()) for name in layout.columns])
    for name, kind in layout.added.items():
        schema = schema.append(pa.field(name, _arrow(kind)))
    with pq.ParquetWriter(file, schema) as writer:
        yield lambda rows: writer.write_table(pa.Table.from_pylist(list(rows), schema))


def _arrow(kind: Hint) -> pyarrow.DataType:
    import pyarrow as pa

    if parts := get_args(kind):
        return pa.list_(_arrow(parts[0]))
    scalars = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), np.float32: pa.float32()}
    if found := scalars.get(kind):
        return found
    return pa.struct([(name, _arrow(part)) for name, part in get_type_hints(kind).items()])


def _text(cell: object, kind: Hint) -> str:
    """Return a cell of a CSV or TSV file."""
    if kind is not None and get_args(kind) == (str,) and isinstance(cell, list):
        return " ".join(cell)
    return "" if cell is None else _json(cell) if isinstance(cell, list | Mapping) else str(cell)


def _one_line(cell: str) -> str:
    """Replace tabs and line breaks by spaces. Only cells that are added to a table may contain some."""
    return cell.translate(dict.fromkeys(map(ord, _BREAKS), " "))


def _json(value: Any) -> str:
    """Return JSON. A cell that is NaN becomes null, and a date becomes text."""
    if isinstance(value, dict):
        value = {k: None if isinstance(v, float) and v != v else v for k, v in value.items()}
    text = json.dumps(value, ensure_ascii=False, default=str)
    return json.dumps(value, default=str) if lone_surrogate(text) else text
