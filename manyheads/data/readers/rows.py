"""Rows of tables in every format, their faults by file and line, and the one way to refuse or skip faulty rows.

    .tsv      a header line names the columns; cells are not quoted (as GLUE's files)
    .csv      a header line names the columns; cells may be quoted
    .jsonl    one object a line
    .parquet  a row is counted as a line would be

The first three may be compressed (`.jsonl.gz`, `.jsonl.zst`). Lines of blanks alone are passed over. Parquet is read in
batches, lines one by one: no table is held in memory.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from manyheads.data.readers.compressed import MOST_EXPANDED, UNCHECKED, kind
from manyheads.data.readers.splits import LONGEST, LONGEST_LINE, SURROGATE, UTF8, half_character, lines
from manyheads.errors import UserError, extra
from manyheads.files import parse_json

S = TypeVar("S")
T = TypeVar("T")
Fault = tuple[str, str]  # what is wrong, and what would be right

TABLES = (".tsv", ".csv", ".jsonl", ".parquet")
NUL = ("a NUL byte", "remove it")
_BATCH = 64  # rows of a Parquet file that are held at once: they may be photographs
_USUAL = 20  # times its size that a Parquet file expands to; where it does more, rows are read one by one
_UNDECODED = "\ud800"  # stands for a line that is no UTF-8: no text that was decoded has it


class Row(NamedTuple, Generic[T]):
    """What was read at one place of a file, or why nothing was.

    number  the line, or the row of a Parquet file, from 1; messages say `name` instead where there is one
    cells   by the names of the columns; or what a reader made of them
    fault   why the row cannot be used; `hint` says what would be right. Skipped rows are counted by what stands
            before the first ": " of it, so what this one row holds belongs behind.
    """

    file: Path
    number: int
    cells: T
    fault: str = ""
    hint: str = ""
    name: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}: {self.name}" if self.name else f"{self.file}:{self.number}"


Cells = Mapping[str, Any]
Block = list[tuple[int, str | None]]  # numbered lines; None for one that is not UTF-8


class BadRow(Exception):
    """Why a row cannot be used and what would be right; `file` and `line` where they are not those of the row."""

    def __init__(self, fault: str, hint: str, *, file: Path | None = None, line: int | None = None) -> None:
        super().__init__(fault)
        self.fault, self.hint, self.file, self.line = fault, hint, file, line


def parsed(rows: Iterable[Row[S]], parse: Callable[[Row[S]], T]) -> Iterator[Row[T]]:
    """The rows, with what `parse` makes of them as cells; those for which it raises BadRow have its fault."""
    for row in rows:
        made: Any = None
        fault = (row.fault, row.hint)
        file, number = row.file, row.number
        if not row.fault:
            try:
                made = parse(row)
            except BadRow as bad:
                fault, file, number = (bad.fault, bad.hint), bad.file or file, bad.line or number
        yield Row(file, number, made, *fault, row.name)


def blocks(file: Path, separates: Callable[[str], bool] = lambda line: not line.strip()) -> Iterator[Row[Block]]:
    """The lines between those that separate blocks: between blank ones, unless another rule is given."""
    block: Block = []
    for number, line in enumerate(chain(lines(file), [""]), 1):
        if line is None or not separates(line):
            block.append((number, line))
        elif block:
            yield Row(file, block[0][0], block)
            block = []


def filter_invalid(
    rows: Iterable[Row[T]], skips: Counter[str], *, skip: bool, unit: str = "lines", whole: Path | None = None
) -> Iterator[Row[T]]:
    """The rows without a fault.

    A faulty one raises UserError, "FILE:LINE: what is wrong; what would be right"; or with `skip` it is left out and
    counted in `skips` by file and fault. `unit` names what is left out; `whole` is the corpus that they are counted of
    where each is a file of it.
    """
    for row in rows:
        if not row.fault:
            yield row
        elif skip:
            skips[f"{whole or row.file}: {row.fault.partition(': ')[0]}"] += 1
        else:
            raise UserError(f"{row.place}: {row.fault}; {row.hint}, or skip such {unit} with --skip-bad-lines")


def table(
    file: str | Path, *, columns: Collection[str] = (), headers: Sequence[Sequence[str]] = ()
) -> Iterator[Row[Cells]]:
    """The rows of a file, faulty ones among them.

    columns  of a Parquet file, read no others; raises UserError where it has none of them. Empty: all
    headers  names, some of which a .tsv or .csv file has in its first line if that is a header; where it has not, the
             columns are those of the first of `headers`. Empty: the first line is a header

    Raises FileNotFoundError, and UserError for a file that cannot be read as a table.
    """
    file = Path(file)
    if kind(file) not in TABLES:
        raise UserError(f"{file}: cannot tell its columns: expected a {', '.join(TABLES)} file")
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give an existing {kind(file)} file")
    if file.stat().st_size == 0:
        raise UserError(f"{file}: the file is empty; expected a header line or one object a line")
    if file.suffix == ".parquet":  # which compresses itself
        return _parquet(file, columns)
    return _jsonl(file) if kind(file) == ".jsonl" else _delimited(file, headers)


def text_fault(value: Any, name: str) -> Fault | None:
    """What is wrong with a cell that should be a text with something in it."""
    if not isinstance(value, str):
        return f"{name!r} is {repr(value)[:40]}, not text", "write a string"
    if not value.strip():
        return f"{name!r} is blank", "fill in or remove the row"
    return character_fault(value, repr(name))


def character_fault(text: str, name: str) -> Fault | None:
    """What is wrong with the characters of a text, or their number."""
    if len(text) > LONGEST:
        return f"{name} is longer than {LONGEST:,} characters: it has {len(text):,}", "cut it into several"
    if "\0" in text:
        return NUL
    return (f"{name} {SURROGATE[0]}", SURROGATE[1]) if half_character(text) else None


def _jsonl(file: Path) -> Iterator[Row[Cells]]:
    for number, line in enumerate(lines(file), 1):
        if line is None:
            yield Row(file, number, {}, *UTF8)
        elif line.strip():
            try:
                cells = parse_json(line)
            except ValueError as error:
                yield Row(file, number, {}, f"not JSON ({getattr(error, 'msg', error)})", "write one object a line")
                continue
            if isinstance(cells, dict):
                yield Row(file, number, cells)
            else:
                yield Row(file, number, {}, f"{type(cells).__name__} where an object was expected", "write an object")


def _parquet(file: Path, columns: Collection[str]) -> Iterator[Row[Cells]]:
    with extra("parquet", "a Parquet file"):
        import pyarrow
        import pyarrow.parquet

    number = 0
    try:
        content = pyarrow.parquet.ParquetFile(file, buffer_size=2**16)  # else whole columns are held
        names = content.schema_arrow.names
        chosen = [name for name in names if name in columns or not columns]
        rows = 1 if _expansion(file, content.metadata) > _USUAL else _BATCH
        for group in range(content.num_row_groups if chosen else 0):  # one at a time: else pyarrow holds them all
            for batch in content.iter_batches(rows, [group], columns=chosen):
                for cells, fault in _python(batch):
                    number += 1
                    yield Row(file, number, cells, *fault)
        pyarrow.default_memory_pool().release_unused()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # a damaged page is an OSError
        place = f"{file}:{number + 1}: damaged" if number else f"{file}: not a Parquet file"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{place} ({reason}); write it again") from None
    if not chosen:
        raise UserError(f"{file}: no column {' or '.join(map(repr, columns))}: it has {', '.join(map(repr, names))}")


def _expansion(file: Path, metadata: Any) -> float:
    """How many times its size a file expands to, as it says itself. Raises UserError for more than any data do: a page
    is expanded whole. Its columns are not asked: where a column's metadata are damaged, pyarrow ends the process."""
    size = max(1, file.stat().st_size)
    whole = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if whole > max(UNCHECKED, MOST_EXPANDED * size):
        raise UserError(
            f"{file}: it expands to {whole:,} bytes, more than {MOST_EXPANDED} times its size, as no data do; write it "
            "again"
        )
    return float(whole / size)


def _python(batch: Any) -> Iterator[tuple[Cells, Fault | tuple[()]]]:
    """Rows with their values as Python's; those that have none, such as a date in the year 100,000, have a fault."""
    try:
        yield from ((cells, ()) for cells in batch.to_pylist())
    except (ValueError, OverflowError) as error:
        if len(batch) > 1:
            for row in range(len(batch)):
                yield from _python(batch.slice(row, 1))
        else:
            fault = f"a value that cannot be read: {' '.join(str(error).split())[:100]}"
            yield {}, UTF8 if isinstance(error, UnicodeDecodeError) else (fault, "write it as text")


def _delimited(file: Path, headers: Sequence[Sequence[str]]) -> Iterator[Row[Cells]]:
    tabs = kind(file) == ".tsv"
    header: Sequence[str] = ()
    hint = "separate cells by one tab" if tabs else "quote cells that hold a comma"
    for number, cells in _tsv(file) if tabs else _csv(file):
        if isinstance(cells, tuple):
            if not header and not headers:
                raise UserError(f"{file}:{number}: {cells[0]}; {cells[1]}")
            yield Row(file, number, {}, *cells)
            continue
        if not header:
            if not headers or any(set(names) <= set(cells) for names in headers):
                header = cells
                if repeated := sorted(name for name, count in Counter(header).items() if count > 1):
                    named = ", ".join(map(repr, repeated))
                    raise UserError(f"{file}:{number}: the header names {named} twice; rename one")
                expected = f"the header names {len(header)}"
                continue
            header, hint = headers[0], f"{hint}, or name the columns in a header line"
            expected = f"{len(header)} were expected"
        if len(cells) == len(header):
            yield Row(file, number, dict(zip(header, cells, strict=True)))
        else:
            yield Row(file, number, {}, f"{len(cells)} columns where {expected}", hint)


def _tsv(file: Path) -> Iterator[tuple[int, list[str] | Fault]]:
    for number, line in enumerate(lines(file), 1):
        if line is None or "\0" in line:
            yield number, UTF8 if line is None else NUL
        elif line.strip():
            yield number, line.split("\t")


def _csv(file: Path) -> Iterator[tuple[int, list[str] | Fault]]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    reader = csv.reader((_UNDECODED if line is None else f"{line}\n" for line in lines(file)), strict=True)
    while True:
        number = reader.line_num + 1  # a quoted cell may hold several lines
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, (f"not CSV ({error})", 'quote cells as "...", and a quote in them as ""')
            continue
        whole = "".join(cells)
        if _UNDECODED in whole or "\0" in whole:
            yield number, UTF8 if _UNDECODED in whole else NUL
        elif cells:
            yield number, cells
