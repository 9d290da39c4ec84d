"""Running text as documents of sentences.

A corpus is a text file, where blank lines separate documents, a table (`rows.py`) with a text in every row, or a
directory of such files. Lines end sentences, and so does HTML's line break; within a line they are told by punctuation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from manyheads.data.rows import TABLES, Row, sift
from manyheads.data.splits import UTF8, lines
from manyheads.data.texts import text_rows

Document = list[str]  # sentences
SUFFIXES = (".txt", *TABLES)

BREAK = "<br ?/?>"
_LINES = re.compile(rf"\n|{BREAK}")
# white space after a stop, perhaps a closed quotation, and before what can begin a sentence
_STOPS = re.compile(r"""(?:(?<=[.!?…])|(?<=[.!?…]["'”’)\]]))\s+(?=["'“‘(\[]?[^\Wa-z_])""")


@dataclass(frozen=True)
class Documents:
    """Documents as they were read. `skips` counts the rows left out, by file and reason."""

    documents: list[Document]
    skips: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"Documents({len(self):,} documents, {sum(map(len, self.documents)):,} sentences)"

    @property
    def texts(self) -> list[str]:
        """A document each, its sentences as lines."""
        return ["\n".join(document) for document in self.documents]

    def subset(self, rows: Sequence[int]) -> Documents:
        return replace(self, documents=[self.documents[i] for i in rows])


def sentences(text: str) -> Document:
    """The sentences of a text, without the blanks around them."""
    cut = (sentence.strip() for line in _LINES.split(text) for sentence in _STOPS.split(line))
    return [sentence for sentence in cut if sentence]


def read_documents(
    data: str | Path, *, column: str = "text", skip_bad_lines: bool = False, limit: int | None = None
) -> Documents:
    """Every document of a corpus (forms above), in the order of files and rows; blank ones are left out.

    column  of a table that holds the text
    limit   how many documents are read at most

    Raises FileNotFoundError or a one-line ValueError that names file, line and remedy.
    """
    path = Path(data)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise FileNotFoundError(f"{path}: no text there; expected files ending in {', '.join(SUFFIXES)}")
    skips: Counter[str] = Counter()
    documents: list[Document] = []
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file; give a text file, or a directory of {', '.join(SUFFIXES)}")
        rows = text_rows(file, column) if file.suffix in TABLES else _paragraphs(file)
        cut = (sentences(row.cells) for row in sift(rows, skips, skip=skip_bad_lines))
        room = None if limit is None else limit - len(documents)
        documents += islice(filter(None, cut), room)
    if not documents:
        raise ValueError(f"{path}: no text in it; expected documents separated by blank lines, or one a row")
    return Documents(documents, dict(skips))


def _paragraphs(file: Path) -> Iterator[Row[str]]:
    paragraph: list[str] = []
    for number, line in enumerate(chain(lines(file), [""]), 1):
        if line is None:
            yield Row(file, number, "", *UTF8)
        elif line.strip():
            paragraph.append(line)
        elif paragraph:
            yield Row(file, number - len(paragraph), "\n".join(paragraph))
            paragraph = []
