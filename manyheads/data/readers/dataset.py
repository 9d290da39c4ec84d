"""Base class of the text data sets. Each item has one value per column, and a location in a file."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.column import Column, SpillingTextBuffer
from manyheads.data.readers.rows import Row, filter_invalid
from manyheads.data.readers.splits import logged
from manyheads.errors import UserError


@dataclass(frozen=True)
class Dataset:
    """Data set that stores its items as columns of equal length: element i of each column belongs to item i.

    Subclasses declare the columns as dataclass fields. A column is a list. A text column that is named in `large` moves
    to a temporary file if it exceeds the memory limit.

    file   file that contains the items; None if they were generated
    lines  line number of each item; empty if the items were generated
    skips  number of skipped items, by file and reason
    """

    columns: ClassVar[tuple[str, ...]]  # names of the dataclass fields that are columns
    # names of the text columns that may be moved to a temporary file if they exceed the memory limit
    large: ClassVar[tuple[str, ...]] = ()

    file: Path | None = field(default=None, kw_only=True)
    lines: Sequence[int] = field(default_factory=list, kw_only=True)
    skips: dict[str, int] = field(default_factory=dict, kw_only=True)

    @classmethod
    def collect(
        cls, rows: Iterable[Row[tuple[Any, ...]]], path: str | os.PathLike[str], missing: str, hint: str = "", *,
        skip: bool, unit: str = "lines", corpus: Path | None = None, skips: Counter[str] | None = None,
        folder: Path | None = None,
    ) -> Self:  # fmt: skip
        """Collect the rows without a fault into a data set.

        rows     rows of a reader. The cells of a row are the values of the columns, in order. If a row has fewer
                 cells than there are columns, the last columns keep their default values
        path     path of the data for messages
        skip     if True, count a faulty row in `skips` instead of raising UserError
        unit     noun for the rows in error messages, such as "texts"
        corpus   name under which skipped rows are counted, if each row is a separate file of a corpus
        skips    counter of skipped items, which the reader may increment while the rows are read
        missing  beginning of the error message if no row is usable; the text `hint` follows it
        folder   directory of the temporary files of large columns. If None, the system's directory is used
        """
        skips = Counter() if skips is None else skips
        columns = {name: SpillingTextBuffer(folder) if name in cls.large else list[Any]() for name in cls.columns}
        lines = array("q")
        valid = filter_invalid(rows, skips, skip=skip, unit=unit, corpus=corpus)
        for row in logged(valid, f"reading {path}"):
            lines.append(row.number)
            for column, cell in zip(columns.values(), row.cells, strict=False):
                column.append(cell)
        if not lines:
            raise UserError(f"{path}: {missing} ({skips.total():,} skipped){hint and f'; {hint}'}")
        values: dict[str, Any] = {
            name: column.finish() if isinstance(column, SpillingTextBuffer) else column
            for name, column in columns.items()
            if column  # A column for which no row has a value keeps its default value.
        }
        return cls(**values, file=Path(path), lines=lines, skips=dict(skips))

    def __len__(self) -> int:
        return len(vars(self)[self.columns[0]])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} {self.columns[0]}, {self.file})"

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> Self:
        parts: dict[str, Any] = {}
        for name in self.columns:
            entries = vars(self)[name]
            if entries:  # An optional column may be empty; for example, a data set of single texts has no second texts.
                parts[name] = entries.select(indices) if isinstance(entries, Column) else [entries[i] for i in indices]
        lines = array("q", [self.lines[i] for i in indices]) if self.lines else self.lines
        return replace(self, **parts, lines=lines)

    def place(self, index: int) -> str:
        """Return the location of an item in its file, for error messages."""
        return f"{self.file}:{self.lines[index]}" if self.lines else f"item {index + 1:,}"

    def keep(self, kept: Sequence[int], reason: str) -> Self:
        """Return a data set that contains only the selected items. The other items are counted in `skips`."""
        skips = {**self.skips, f"{self.file}: {reason}": len(self) - len(kept)}
        return replace(self.subset(kept), skips=skips)
