"""Reader of table rows in all supported file formats.

    .tsv      a header line names the columns; cells are not quoted (as in the GLUE files)
    .csv      a header line names the columns; cells may be quoted. If the header contains no comma, cells may be
              separated by semicolons or tabs
    .jsonl    one JSON object per line
    .json     a JSON array of objects, which count as lines in messages, or one object per line
    .parquet  rows count as lines in messages

All formats except Parquet may be compressed (`.jsonl.gz`, `.jsonl.zst`). Blank lines are ignored. Parquet files are
read in batches and text files line by line, so only a JSON array is loaded into memory as a whole.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from manyheads.data.readers.compressed import MAX_EXPANSION, UNCHECKED_BYTES, format_suffix, open_decompressed
from manyheads.data.readers.rows import NUL, Cells, Fault, Row
from manyheads.data.readers.splits import MAX_LINE_BYTES, UTF8, lines
from manyheads.errors import UserError, extra
from manyheads.files import parse_json

if TYPE_CHECKING:
    import pyarrow.parquet

_BATCH_ROWS = 64  # Number of Parquet rows in memory at a time. It is small, because the rows may contain photographs.
# A Parquet file usually expands to at most 20 times its size. If a file expands more, its rows are read one by one.
_USUAL_EXPANSION = 20
_MAX_ROW_LINES = 100_000  # maximum number of lines in a row of a CSV file
_UNDECODED = "\ud800"  # placeholder for a line that is not valid UTF-8; decoded text never contains this character

_Headers = Sequence[Sequence[str]]  # alternative sets of column names (see `table`)


class _Format(NamedTuple):
    """Format of a table file.

    read      function that yields the rows of a file
    is_typed  True if cells have types; False if every cell is text, so that a list of words is one cell with spaces
    """

    read: Callable[[Path, Collection[str], _Headers], Iterator[Row[Cells]]]
    is_typed: bool = True


def is_table(source: str | Path | Iterable[Row[Cells]]) -> bool:
    """Return True if `source` is the name of a table file (which may be compressed), or rows in memory."""
    return not isinstance(source, str | Path) or format_suffix(source) in TABLES


def is_typed(source: str | Path | Iterable[Row[Cells]]) -> bool:
    """Return True for rows in memory, and for a table file whose format can store lists and numbers."""
    return not isinstance(source, str | Path) or _FORMATS[format_suffix(source)].is_typed


def table(
    file: str | Path | Iterable[Row[Cells]], *, columns: Collection[str] = (), headers: Sequence[Sequence[str]] = ()
) -> Iterator[Row[Cells]]:
    """Return an iterator over all rows of a table file, including faulty rows. Rows in memory are returned unchanged.

    columns  columns of a Parquet file to read. If empty, all columns are read. Raises UserError if the file has none
             of them
    headers  alternative lists of column names. If the first line of a .tsv or .csv file contains all names of one list,
             it is the header. Otherwise the file has no header, and the first list names its columns. If `headers` is
             empty, the first line is always the header

    Raises FileNotFoundError, or UserError for a file that cannot be read as a table.
    """
    if not isinstance(file, str | Path):
        return iter(file)
    file = Path(file)
    if not is_table(file):
        raise UserError(f"{file}: unknown table format; expected a {', '.join(TABLES)} file")
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give an existing {format_suffix(file)} file")
    if file.stat().st_size == 0:
        raise UserError(f"{file}: the file is empty; expected a header line or one JSON object per line")
    return _FORMATS[format_suffix(file)].read(file, columns, headers)


def _json(file: Path, _: Collection[str], headers: _Headers) -> Iterator[Row[Cells]]:
    return _json_array(file) if is_json_array(file) else _jsonl(file, _, headers)


def _jsonl(file: Path, _: Collection[str], __: _Headers) -> Iterator[Row[Cells]]:
    for number, line in enumerate(lines(file), 1):
        if line is None:
            yield Row(file, number, {}, *UTF8)
        elif line.strip():
            try:
                cells = parse_json(line, object_pairs_hook=_unique)
            except ValueError as error:
                yield Row(
                    file, number, {}, f"invalid JSON ({getattr(error, 'msg', error)})", "write one JSON object per line"
                )
                continue
            if isinstance(cells, dict):
                yield Row(file, number, cells)
            else:
                yield Row(
                    file, number, {}, f"expected a JSON object, found {type(cells).__name__}", "write a JSON object"
                )


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        raise ValueError("an object has a name twice")
    return cells


def is_json_array(file: Path) -> bool:
    return next((line.strip() for line in lines(file) if line and line.strip()), "")[:1] == "["


def _json_array(file: Path) -> Iterator[Row[Cells]]:
    try:
        with open_decompressed(file) as content:
            entries = parse_json(content.read().decode("utf-8-sig"), object_pairs_hook=_unique)
    except UnicodeDecodeError:
        raise UserError(f"{file}: {UTF8[0]}; {UTF8[1]}") from None
    except ValueError as error:
        raise UserError(f"{file}: invalid JSON ({getattr(error, 'msg', error)}); write an array of objects") from None
    for number, entry in enumerate(entries, 1):
        fault = () if isinstance(entry, dict) else (f"expected an object, found {type(entry).__name__}", "correct it")
        yield Row(file, number, entry, *fault)._replace(name=f"entry {number}")


def class_names(file: Path, column: str) -> tuple[str, ...]:
    """Return the label names that the library `datasets` has written to the schema of a Parquet file for a column.

    The result is empty if the schema contains no names for the column, or if the file is not a Parquet file.
    """
    if file.suffix.lower() != ".parquet" or not file.is_file():
        return ()
    with extra("parquet", "a Parquet file"):
        import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_schema(file).metadata or {}
        feature = parse_json(metadata.get(b"huggingface", b"{}").decode())["info"]["features"][column]
        while "names" not in feature:  # The labels of a sequence are in an inner feature.
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return tuple(map(str, feature["names"]))
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError):
        return ()  # A damaged file is reported when its rows are read.


def _parquet(file: Path, columns: Collection[str], _: _Headers) -> Iterator[Row[Cells]]:
    with extra("parquet", "a Parquet file"):
        import pyarrow
        import pyarrow.parquet

    number = 0
    try:
        # Without this buffer size, pyarrow loads each column completely into memory.
        content = pyarrow.parquet.ParquetFile(file, buffer_size=2**16)
        names = content.schema_arrow.names
        if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
            raise UserError(f"{file}: found several columns {', '.join(map(repr, repeated))}; rename the columns")
        chosen = [name for name in names if name in columns or not columns]
        rows = 1 if _expansion(file, content.metadata) > _USUAL_EXPANSION else _BATCH_ROWS
        # Read one row group at a time; otherwise pyarrow keeps all row groups in memory.
        for group in range(content.num_row_groups if chosen else 0):
            for batch in content.iter_batches(rows, [group], columns=chosen):
                for cells, fault in _python_rows(batch):
                    number += 1
                    yield Row(file, number, cells, *fault)
        pyarrow.default_memory_pool().release_unused()
    # For a damaged data page, pyarrow raises OSError.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        place = f"{file}:{number + 1}: damaged Parquet data" if number else f"{file}: not a Parquet file"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{place} ({reason}); write the file again") from None
    if not chosen:
        raise UserError(
            f"{file}: expected a column {' or '.join(map(repr, columns))}, found {', '.join(map(repr, names))}"
        )


def _expansion(file: Path, metadata: pyarrow.parquet.FileMetaData) -> float:
    """Return the ratio of expanded size to file size, according to the metadata of a Parquet file.

    Raises UserError if the ratio is implausible, because a data page is expanded as a whole. Only the totals of row
    groups are read: damaged metadata of a column would crash the process inside pyarrow.
    """
    size = max(1, file.stat().st_size)
    expanded = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if expanded > max(UNCHECKED_BYTES, MAX_EXPANSION * size):
        raise UserError(
            f"{file}: expands to {expanded:,} bytes, more than {MAX_EXPANSION} times its size: it is damaged; write it "
            "again"
        )
    return float(expanded / size)


def _python_rows(batch: pyarrow.RecordBatch) -> Iterator[tuple[Cells, Fault | tuple[()]]]:
    """Yield rows with their cells as Python values.

    A row with a value that Python cannot represent (a date in the year 100,000) has a fault.
    """
    try:
        yield from ((cells, ()) for cells in batch.to_pylist())
    except (ValueError, OverflowError) as error:
        if len(batch) > 1:
            for row in range(len(batch)):
                yield from _python_rows(batch.slice(row, 1))
        else:
            fault = f"unreadable value: {' '.join(str(error).split())[:100]}"
            yield {}, UTF8 if isinstance(error, UnicodeDecodeError) else (fault, "write it as text")


def _tsv(file: Path, _: Collection[str], headers: _Headers) -> Iterator[Row[Cells]]:
    return _delimited(file, _tab_lines(file), headers, "separate cells with one tab")


def _csv(file: Path, _: Collection[str], headers: _Headers) -> Iterator[Row[Cells]]:
    return _delimited(file, _csv_lines(file), headers, "quote cells that contain the separator")


def _delimited(
    file: Path, parsed: Iterator[tuple[int, list[str] | Fault]], headers: _Headers, hint: str
) -> Iterator[Row[Cells]]:
    """Yield the rows of a .tsv or .csv file. The header gives the names of the columns.

    parsed  line number and cells of each row, or line number and fault
    hint    advice for rows with a wrong number of cells
    """
    header: Sequence[str] = ()
    for number, cells in parsed:
        if isinstance(cells, tuple):
            if not header and not headers:
                raise UserError(f"{file}:{number}: {cells[0]}; {cells[1]}")
            yield Row(file, number, {}, *cells)
            continue
        if not header:
            if not headers or any(set(names) <= set(cells) for names in headers):
                header = cells
                if repeated := sorted(name for name, count in Counter(header).items() if count > 1):
                    names_text = ", ".join(map(repr, repeated))
                    raise UserError(
                        f"{file}:{number}: the header contains {names_text} more than once; rename the columns"
                    )
                expected = f"expected {len(header)} columns as in the header"
                continue
            if found := sorted({*headers[0]} & {*cells}):  # The first line is a header in which a column is missing.
                raise UserError(
                    f"{file}:{number}: expected the columns {' and '.join(map(repr, headers[0]))}, found a header with "
                    f"{', '.join(map(repr, cells))}; rename the columns, or choose others than {', '.join(found)}"
                )
            header, hint = headers[0], f"{hint}, or name the columns in a header line"
            expected = f"expected {len(header)} columns"
        if len(cells) == len(header):
            yield Row(file, number, dict(zip(header, cells, strict=True)))
        else:
            yield Row(file, number, {}, f"{expected}, found {len(cells)}", hint)


def _tab_lines(file: Path) -> Iterator[tuple[int, list[str] | Fault]]:
    for number, line in enumerate(lines(file), 1):
        if line is None or "\0" in line:
            yield number, UTF8 if line is None else NUL
        elif line.strip() or "\t" in line:  # a row of empty cells is no blank line
            yield number, line.split("\t")


def _separator(file: Path) -> str:
    """Return the separator of a CSV file: a comma, or a semicolon or tab if the first line contains no comma."""
    header = re.sub(r'"[^"]*"', "", next(lines(file), None) or "")
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")


def _csv_lines(file: Path) -> Iterator[tuple[int, list[str] | Fault]]:
    """Yield the line number and the cells of each row. If a quote never closes, the next line begins a new row."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    source = (_UNDECODED if line is None else f"{line}\n" for line in lines(file))
    ahead, taken, number, separator = deque[str](), list[str](), 1, _separator(file)

    def feed() -> Iterator[str]:
        while len(taken) < _MAX_ROW_LINES and (line := ahead.popleft() if ahead else next(source, None)) is not None:
            taken.append(line)  # a quoted cell may contain several lines
            yield line

    reader = csv.reader(feed(), strict=True, delimiter=separator)
    while True:
        taken.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, (f"invalid CSV ({error})", 'quote cells as "...", and write a quote inside a cell as ""')
            ahead.extendleft(reversed(taken[1:]))
            number, reader = number + 1, csv.reader(feed(), strict=True, delimiter=separator)
            continue
        line = "".join(cells)
        if _UNDECODED in line or "\0" in line:
            yield number, UTF8 if _UNDECODED in line else NUL
        elif cells:
            yield number, cells
        number += len(taken)


# The only list of table formats. All lists of suffixes are derived from it. A file .parquet.gz is not supported,
# because Parquet files are compressed internally.
_FORMATS: dict[str, _Format] = {
    ".tsv": _Format(_tsv, is_typed=False),
    ".csv": _Format(_csv, is_typed=False),
    ".jsonl": _Format(_jsonl),
    ".json": _Format(_json),
    ".parquet": _Format(_parquet),
}
TABLES = tuple(_FORMATS)  # suffixes of table files
