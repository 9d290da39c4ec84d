"""Running text, kept as it is: every character is to be predicted.

A corpus is a file, or a directory of them with what is below it, hidden files left out. A table (`rows.py`) has a text
in every row; any other file is one text.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

from manyheads.data.dataset import Dataset
from manyheads.data.rows import TABLES, BadRow, Cells, Row, parsed, sift, table
from manyheads.data.splits import SURROGATE, UTF8, half_character

FIRST = 2**20  # bytes of a text file of which only the first part is read


@dataclass(frozen=True, repr=False)
class Texts(Dataset):
    """Running texts."""

    columns: ClassVar[tuple[str, ...]] = ("texts",)

    texts: list[str]

    @property
    def bytes(self) -> int:
        """In UTF-8."""
        return sum(len(text.encode()) for text in self.texts)


def read_texts(
    path: str | Path, *, column: str = "text", skip_bad_lines: bool = False, limit: int | None = None
) -> Texts:
    """The texts of a file or directory, in the order of their names; blank ones carry nothing and are left out.

    column          of tables that holds the text
    skip_bad_lines  leave out faulty rows, and files that are not UTF-8, and count them
    limit           how many texts are read at most, and of a text file only the first part

    Raises FileNotFoundError or a one-line ValueError that names file, line and remedy.
    """
    path = Path(path)
    if not path.is_file() and not path.is_dir():  # nor a pipe, which would be waited for
        raise FileNotFoundError(f"{path}: no such file or directory; give a text file, or a directory of them")
    below = (file for file in sorted(path.rglob("*")) if file.is_file())
    shown = [file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    skips: Counter[str] = Counter()

    def rows() -> Iterator[Row[tuple[str]]]:
        for file in shown if path.is_dir() else [path]:
            is_table = file.suffix in TABLES
            texts = text_rows(file, column) if is_table else _whole(file, None if limit is None else FIRST)
            yield from sift(texts, skips, skip=skip_bad_lines, unit="lines" if is_table else "files")

    return Texts.collect(islice((row for row in rows() if row.cells[0].strip()), limit), path, skips, "no text in it")


def text_rows(file: Path, column: str) -> Iterator[Row[tuple[str]]]:
    """The text of each row of a table, blank or not."""

    def text_of(row: Row[Cells]) -> tuple[str]:
        text = row.cells.get(column)
        if not isinstance(text, str):
            raise BadRow(f"no text in {column!r}", "name the column with column=NAME")
        if half_character(text):
            raise BadRow(f"{column!r} {SURROGATE[0]}", SURROGATE[1])
        return (text,)

    return parsed(table(file, columns=(column,)), text_of)


def _whole(file: Path, first: int | None) -> Iterator[Row[tuple[str]]]:
    """A file as one text; or only its first bytes, up to the last line end or, in one long line, character in them."""
    with file.open("rb") as content:
        data = content.read(first).removeprefix(b"\xef\xbb\xbf")
        whole = not content.read(1)
    if not whole:
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        yield Row(file, 1, (getincrementaldecoder("utf-8")().decode(data, final=whole),))
    except UnicodeDecodeError as error:
        yield Row(file, data.count(b"\n", 0, error.start) + 1, ("",), *UTF8)
