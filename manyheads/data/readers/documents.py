"""Reader that splits running text into documents and sentences.

A corpus is a text file in which blank lines separate documents, a table (`rows.py`) with one document per row, or a
directory of such files. A sentence ends at a newline, at an HTML line break, or after punctuation within a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from manyheads.data.batching import Lazy
from manyheads.data.readers.compressed import format_suffix
from manyheads.data.readers.corpus import SUFFIXES, text_rows
from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import Row, parse_rows, split_blocks
from manyheads.data.readers.splits import UTF8, parts_of
from manyheads.data.readers.tables import is_table

Document = list[str]  # a document as a list of sentences

BREAK = "<br ?/?>"
_LINES = re.compile(rf"\n|{BREAK}")
# A sentence boundary is white space after a punctuation mark (and a closing quotation mark), followed by an upper-case
# letter or a digit, which may be in quotation marks.
_STOPS = re.compile(r"""(?:(?<=[.!?…])|(?<=[.!?…]["'”’)\]]))\s+(?=["'“‘(\[]?[^\Wa-z_])""")


@dataclass(frozen=True, repr=False)
class Documents(Dataset):
    """Data set of documents. Each document is stored as one string, with one sentence per line."""

    columns: ClassVar[tuple[str, ...]] = ("texts",)
    large: ClassVar[tuple[str, ...]] = columns

    texts: Sequence[str]

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Documents:
        return cls(list(map("\n".join, documents)))

    @property
    def documents(self) -> Sequence[Document]:
        """All documents; each is a list of sentences."""
        return Lazy(self.texts, lambda text: text.split("\n"))


def sentences(text: str) -> Document:
    """Split a text into sentences and remove the white space around each sentence."""
    cut = (sentence.strip() for line in _LINES.split(text) for sentence in _STOPS.split(line))
    return [sentence for sentence in cut if sentence]


def read_documents(
    data: str | Path | Rows, *, column: str = "text", skip_bad_lines: bool = False, cache_folder: Path | None = None
) -> Documents:
    """Read all documents of a corpus, in the order of files and rows. Blank documents are left out.

    See the documentation of this module for the formats.

    column          name of the table column that contains the text
    skip_bad_lines  True: leave out and count faulty rows
    cache_folder    directory for a temporary file without a name, which stores the texts if they exceed 64 million
                    characters; None: the system's directory for temporary files

    Raises FileNotFoundError, or a one-line UserError that names the file, the line and a remedy.
    """
    path, files = Path(data), [data] if isinstance(data, Rows) else document_files(str(data))

    def document(row: Row[tuple[str]]) -> tuple[str] | None:
        found = sentences(row.cells[0])
        return ("\n".join(found),) if found else None

    def rows() -> Iterator[Row[tuple[str]]]:
        for file in files:
            if isinstance(file, Path) and not file.is_file():
                expected = f"give a text file, or a directory of {', '.join(SUFFIXES)}"
                raise FileNotFoundError(f"{file}: no such file; {expected}")
            texts = _paragraphs(file) if isinstance(file, Path) and not is_table(file) else text_rows(file, column)
            yield from parse_rows(texts, document)

    hint = "expected documents separated by blank lines, or one document per row"
    return Documents.collect(rows(), path, "no text found", hint, skip=skip_bad_lines, folder=cache_folder)


def document_files(corpus: str) -> list[Path]:
    """Return the files of a corpus.

    corpus  path of one file, several paths joined by commas, or the path of a directory of text files

    Raises FileNotFoundError for a directory without text files.
    """
    files: list[Path] = []
    for path in parts_of(corpus):
        inside = sorted(file for file in path.iterdir() if is_document_file(file)) if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(f"{path}: found no text files; expected files ending in {', '.join(SUFFIXES)}")
        files += inside
    return files


def is_document_file(path: Path) -> bool:
    return format_suffix(path) in SUFFIXES


def _paragraphs(file: Path) -> Iterator[Row[tuple[str]]]:
    for block in split_blocks(file):
        yield from (Row(file, number, ("",), *UTF8) for number, line in block.cells if line is None)
        yield Row(file, block.number, ("\n".join(line for _, line in block.cells if line is not None),))
