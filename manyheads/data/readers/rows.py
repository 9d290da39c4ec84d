"""Rows of a file or of data in memory, which all readers convert to items. Faults are reported with file and line.

A reader takes rows from `tables.py`, from `memory.py` or from the lines of a file. It converts each row to an item with
`parse_rows`. For a faulty row, `filter_invalid` raises an error, or skips and counts the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, cast

from manyheads.data.readers.splits import LONGEST, SURROGATE, lines, lone_surrogate, parts_of
from manyheads.errors import UserError

S = TypeVar("S")
T = TypeVar("T")
Fault = tuple[str, str]  # pair of strings: the fault, and a hint on how to correct it

NUL = ("contains a NUL byte", "remove it")


class Row(NamedTuple, Generic[T]):
    """Row of a table or text file, with the reason if the row cannot be used.

    file    file that contains the row
    number  line number, or row number in a Parquet file, counted from 1. Messages use `name` instead if it is set
    cells   mapping from column name to cell, or the item to which a reader has converted this mapping
    fault   reason why the row cannot be used; empty for a usable row. Skipped rows are counted by the part of the
            fault before its first ": ", so details of a single row must come after this colon
    hint    advice on how to correct the fault
    name    name of the row in messages, such as "question 7"
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


Cells = Mapping[str, object]
Block = list[tuple[int, str | None]]  # pair (line number, line); the line is None if it is not valid UTF-8


class BadRow(Exception):
    """Exception that a reader raises for a row that it cannot use.

    fault       reason why the row cannot be used
    hint        advice on how to correct the fault
    file, line  location of the fault, if it differs from the location of the row
    """

    def __init__(self, fault: str, hint: str, *, file: Path | None = None, line: int | None = None) -> None:
        super().__init__(fault)
        self.fault, self.hint, self.file, self.line = fault, hint, file, line


def parse_rows(rows: Iterable[Row[S]], parse: Callable[[Row[S]], T | None]) -> Iterator[Row[T]]:
    """Yield each row with the result of the function `parse` in place of its cells.

    If `parse` raises BadRow for a row, the row is marked as faulty. If it returns None, the row is left out.
    """
    for row in rows:
        try:
            if row.fault:
                raise BadRow(row.fault, row.hint)
            result = parse(row)
        except BadRow as bad:
            no_cells = cast(T, None)  # The cells of a faulty row are never read.
            yield Row(bad.file or row.file, bad.line or row.number, no_cells, bad.fault, bad.hint, row.name)
        else:
            if result is not None:
                yield Row(row.file, row.number, result, name=row.name)


def split_blocks(file: Path, separates: Callable[[str], bool] = lambda line: not line.strip()) -> Iterator[Row[Block]]:
    """Yield the blocks of consecutive lines in a text file, as one row each.

    separates  function that returns True for a line that ends a block. By default, blank lines end a block
    """
    block: Block = []
    for number, line in enumerate(chain(lines(file), [""]), 1):
        if line is None or not separates(line):
            block.append((number, line))
        elif block:
            yield Row(file, block[0][0], block)
            block = []


def filter_invalid(
    rows: Iterable[Row[T]], skips: Counter[str], *, skip: bool, unit: str = "lines", corpus: Path | None = None
) -> Iterator[Row[T]]:
    """Yield only the rows without a fault.

    For a faulty row, raise UserError ("FILE:LINE: fault; hint"). If `skip` is true, leave out the row instead, and
    count it in `skips` by file and fault.

    unit    noun for the rows in the error message, such as "texts"
    corpus  name under which skipped rows are counted, if each row is a separate file of a corpus
    """
    for row in rows:
        if not row.fault:
            yield row
        elif skip:
            skips[f"{corpus or row.file}: {row.fault.partition(': ')[0]}"] += 1
        else:
            option = skip_option(row.file, unit)
            raise UserError(f"{row.place}: {row.fault}; {row.hint}, or skip such {unit} with {option}")


def skip_option(corpus: object, unit: str = "lines") -> str:
    """Return the name of the option that skips faulty items.

    This is a command-line option for files, and an argument of Python functions for data in memory.

    corpus  path of the data. If no file or directory has this path, the data are in memory
    unit    noun for the items: "images", "lines" or another word for texts
    """
    if not str(corpus).startswith("hub:") and not any(part.exists() for part in parts_of(str(corpus))):
        return "skip_bad_lines=True"
    return "--skip-bad-images" if unit == "images" else "--skip-bad-lines"


def text_fault(value: object, name: str) -> Fault | None:
    """Check a cell that must be a non-blank text. Return the fault and a hint, or None."""
    if not isinstance(value, str):
        return f"expected text in {name!r}, found {repr(value)[:40]}", "write a string"
    if not value.strip():
        return f"{name!r} is blank", "fill in or remove the row"
    return character_fault(value, repr(name))


def character_fault(text: str, name: str) -> Fault | None:
    """Check a text for unusable characters and for its length. Return the fault and a hint, or None."""
    if len(text) > LONGEST:
        return f"{name} is longer than {LONGEST:,} characters: it has {len(text):,}", "split it into several texts"
    if "\0" in text:
        return NUL
    return (f"{name} {SURROGATE[0]}", SURROGATE[1]) if lone_surrogate(text) else None
