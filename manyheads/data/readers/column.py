"""Text columns of a data set that may exceed memory.

A text column is a list of strings, or a temporary file from which single texts are read on demand.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from manyheads.files import WriteError

MAX_CHARACTERS_IN_MEMORY = 2**26  # A text column with more characters than this is moved from memory to a file.
WRITE_SIZE = 2**20  # number of bytes per write to the file


class Column(Sequence[str]):
    """Text column that is stored in an unnamed temporary file.

    The system removes the file when the last column that reads from it is deleted.
    """

    def __init__(self, file: BinaryIO, ends: NDArray[np.int64], rows: NDArray[np.int64] | None = None) -> None:
        """Create a column of the texts in a file.

        file  file that contains the texts one after another, in UTF-8
        ends  (N + 1,) byte offsets of the ends of the N texts in the file, preceded by 0
        rows  (M,) indices of the texts that belong to this column. If None, all texts belong to it
        """
        self._file, self._ends, self._rows = file, ends, rows

    def __len__(self) -> int:
        return len(self._ends) - 1 if self._rows is None else len(self._rows)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self):,} texts")
        row = index % len(self) if self._rows is None else self._rows[index]
        start, end = self._ends[row : row + 2].tolist()
        return os.pread(self._file.fileno(), end - start, start).decode()

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def select(self, rows: Sequence[int] | NDArray[np.int64]) -> Column:
        """Return a column that contains only the texts with the given row indices, in that order."""
        rows = np.asarray(rows, np.int64)
        return Column(self._file, self._ends, rows if self._rows is None else self._rows[rows])


class ConcatenatedTexts:
    """Several text columns, concatenated. They can be iterated more than once."""

    def __init__(self, columns: Iterable[Sequence[str]]) -> None:
        self._columns = columns

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._columns)

    def __len__(self) -> int:
        return sum(map(len, self._columns))


class SpillingTextBuffer:
    """Buffer that collects texts in memory, or in a temporary file if they become too large.

    All texts move to the file when they have more than `MAX_CHARACTERS_IN_MEMORY` characters in total.

    folder  directory of the temporary file. If None, the system's directory for temporary files is used
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._texts: list[str] = []
        self._characters = 0
        self._file: BinaryIO | None = None
        self._ends = array("q", [0])
        self._pending = bytearray()

    def append(self, text: str) -> None:
        if self._file is None:
            self._texts.append(text)
            self._characters += len(text)
            if self._characters > MAX_CHARACTERS_IN_MEMORY:
                self._file = self._open_file()
                texts, self._texts = self._texts, []
                for earlier in texts:
                    self.append(earlier)
        else:
            content = text.encode()
            self._pending += content
            self._ends.append(self._ends[-1] + len(content))
            if len(self._pending) >= WRITE_SIZE:
                self._write(self._file)

    def finish(self) -> list[str] | Column:
        """Return all appended texts as a column. No text may be appended after this call."""
        if self._file is None:
            return self._texts
        self._write(self._file)
        return Column(self._file, np.frombuffer(self._ends, np.int64))

    def _open_file(self) -> BinaryIO:
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            return cast(BinaryIO, tempfile.TemporaryFile(dir=self._folder))
        except OSError as error:
            raise self._fault(error) from error

    def _write(self, file: BinaryIO) -> None:
        try:
            file.write(self._pending)
            file.flush()
        except OSError as error:
            raise self._fault(error) from error
        self._pending.clear()

    def _fault(self, error: OSError) -> WriteError:
        folder = self._folder or tempfile.gettempdir()
        return WriteError(f"{folder}: failed to write texts to a temporary file: {error.strerror}; free disk space")
