"""Base class of text data sets: the items of a corpus as columns, with their locations and the skipped rows."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.column import Column, SpillingTextBuffer
from manyheads.data.readers.rows import Row
from manyheads.errors import UserError

D = TypeVar("D", bound=Any)


@dataclass(frozen=True)
class Dataset:
    """Items as columns of equal length: entry i of each column belongs to item i.

    Subclasses declare the columns. Columns are lists; those named in `large` are in a temporary file if they exceed
    the memory limit.

    file   source of the items; None if they were generated
    lines  line number of each item; empty if the items were generated
    skips  number of skipped items, by file and reason
    """

    columns: ClassVar[tuple[str, ...]]  # names of the fields that are columns
    large: ClassVar[tuple[str, ...]] = ()  # names of the text columns that may be in a file (`Column`)

    file: Path | None = field(default=None, kw_only=True)
    lines: Sequence[int] = field(default_factory=list, kw_only=True)
    skips: dict[str, int] = field(default_factory=dict, kw_only=True)

    @classmethod
    def collect(
        cls, rows: Iterable[Row[tuple[Any, ...]]], path: str | Path, skips: Counter[str], missing: str,
        hint: str = "", folder: Path | None = None,
    ) -> Self:  # fmt: skip
        """Collect rows into a data set.

        rows     rows without a fault; their cells are the values of the columns. If the cells of the rows are fewer
                 than the columns, the last columns keep their defaults
        skips    counter that is filled while the rows are read
        missing  text of the UserError that is raised if there are no rows, followed by `hint`
        folder   directory for large columns; None: the system's directory for temporary files
        """
        large = {name: SpillingTextBuffer(folder) for name in cls.large}
        cells: dict[str, Any] = {**large}
        lines = array("q")
        for row in rows:
            lines.append(row.number)
            for name, cell in zip(cls.columns, row.cells, strict=False):
                cells.setdefault(name, []).append(cell)
        if not lines:
            raise UserError(f"{path}: {missing} ({skips.total():,} skipped){hint and f'; {hint}'}")
        columns = {**cells, **{name: texts.finish() for name, texts in large.items()}}
        return cls(**columns, file=Path(path), lines=lines, skips=dict(skips))

    def __len__(self) -> int:
        return len(getattr(self, self.columns[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} {self.columns[0]}, {self.file})"

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> Self:
        parts: dict[str, Any] = {}
        for name in self.columns:
            entries = getattr(self, name)
            if entries:  # an optional column is empty (single texts have no second texts)
                parts[name] = entries.select(indices) if isinstance(entries, Column) else [entries[i] for i in indices]
        lines = array("q", [self.lines[i] for i in indices]) if self.lines else self.lines
        return replace(self, **parts, lines=lines)

    def place(self, index: int) -> str:
        """Return the location of an item for error messages."""
        return f"{self.file}:{self.lines[index]}" if self.lines else f"item {index + 1:,}"


def keep_items(data: D, kept: Sequence[int], reason: str) -> D:
    """Return a data set of texts or images with the kept items only; the others are counted in `skips`."""
    skips = {**data.skips, f"{data.file}: {reason}": len(data) - len(kept)}
    return replace(data.subset(kept), skips=skips)
