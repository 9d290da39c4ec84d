"""What the readers of texts yield: the items of a corpus as columns, where each was read, and what was left out."""

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
    """Items as columns of one length, of which the entries at i belong to item i. A subclass declares them. They are
    lists, but those that it calls `large` may be in a file, where they do not fit into memory.

    file   where they were read, None where they were made
    lines  of the file that the items begin at; empty where they were made
    skips  how many were left out, by file and reason
    """

    columns: ClassVar[tuple[str, ...]]  # names of the fields that are columns
    large: ClassVar[tuple[str, ...]] = ()  # and of those among them that are `Column`s of texts

    file: Path | None = field(default=None, kw_only=True)
    lines: Sequence[int] = field(default_factory=list, kw_only=True)
    skips: dict[str, int] = field(default_factory=dict, kw_only=True)

    @classmethod
    def collect(
        cls, rows: Iterable[Row[tuple[Any, ...]]], path: str | Path, skips: Counter[str], missing: str,
        hint: str = "", folder: Path | None = None,
    ) -> Self:  # fmt: skip
        """The items of rows without a fault, whose cells are the columns. Rows without the last of them leave it at its
        default.

        skips    counted while the rows are read
        missing  what the UserError for no rows says, followed by `hint`
        folder   for large columns; None: that of the system's temporary files
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
        columns = {**cells, **{name: texts.gathered() for name, texts in large.items()}}
        return cls(**columns, file=Path(path), lines=lines, skips=dict(skips))

    def __len__(self) -> int:
        return len(getattr(self, self.columns[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} {self.columns[0]}, {self.file})"

    def subset(self, chosen: Sequence[int] | NDArray[np.int64]) -> Self:
        parts: dict[str, Any] = {}
        for name in self.columns:
            entries = getattr(self, name)
            if entries:  # texts have no pairs
                parts[name] = entries.chosen(chosen) if isinstance(entries, Column) else [entries[i] for i in chosen]
        lines = array("q", [self.lines[i] for i in chosen]) if self.lines else self.lines
        return replace(self, **parts, lines=lines)

    def place(self, index: int) -> str:
        """Where an item was read, as an error names it."""
        return f"{self.file}:{self.lines[index]}" if self.lines else f"item {index + 1:,}"


def leaving_out(data: D, kept: Sequence[int], reason: str) -> D:
    """Of a data set of texts or images the kept items; the others are counted in `skips`."""
    skips = {**data.skips, f"{data.file}: {reason}": len(data) - len(kept)}
    return replace(data.subset(kept), skips=skips)
