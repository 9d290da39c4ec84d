"""Reader of running text that yields long texts in pieces, so that a corpus may exceed memory.

A corpus is given as a file, as several file names joined by commas, or as a directory, which is searched recursively.
In a directory, hidden files are ignored. Source code, documentation and binary files are ignored if the directory
contains more text than them. In a table (`tables.py`), each row is one text; any other file is one text. All formats
except Parquet may be compressed (.gz, .zst).
"""

from __future__ import annotations

import json
from array import array
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.cache import cached
from manyheads.data.readers.compressed import COMPRESSED, READ_SIZE, format_suffix, open_decompressed
from manyheads.data.readers.roles import SOURCE_SUFFIXES
from manyheads.data.readers.rows import NUL, BadRow, Cells, Row, filter_invalid, parse_rows
from manyheads.data.readers.splits import SURROGATE, UTF8, logged, lone_surrogate, parts_of
from manyheads.data.readers.tables import TABLES, is_table, table
from manyheads.errors import UserError
from manyheads.files import parse_json

SUFFIXES = (".txt", ".text", ".tokens", ".raw", *TABLES)  # suffixes of texts and tables
_SAMPLE = 1024  # number of bytes at the start of a file that show if it is binary
MAX_PIECE = 2**20  # maximum number of characters in a piece of text
# Version of the format in which facts about a corpus are stored. Increase it when the stored content changes.
FORMAT = "corpus-2"


State = list[list[str | int]]  # name, size and modification time of each file


class Piece(NamedTuple):
    """Piece of a text: consecutive characters. A long text is divided into several pieces.

    Texts are cut before a space or newline that follows a letter or digit. Byte-level BPE starts a new word there,
    too, so cutting does not change the tokens.
    """

    text: int  # index of the text within the corpus
    content: str | None  # characters of the piece; None if the text is faulty (its fault has already been reported)


@dataclass(frozen=True)
class Corpus:
    """Text files of a corpus, in reading order.

    files           paths of the files
    column          name of the table column that contains the text
    skip_bad_lines  if True, leave out faulty table rows and files that are not valid UTF-8. If False, they are errors
    """

    files: tuple[Path, ...]
    column: str = "text"
    skip_bad_lines: bool = False

    def pieces(self, skips: Counter[str] | None = None) -> Iterator[Piece]:
        """Yield the text of all files in pieces.

        skips  counter of skipped rows and files by reason, which this function increments
        """
        text, skips = 0, Counter() if skips is None else skips
        for path in self.files:
            piece = None
            for piece in logged(self._of_file(path, text, skips), f"reading {path}, pieces"):
                yield piece
            text = text if piece is None else piece.text + 1

    def _of_file(self, path: Path, text: int, skips: Counter[str]) -> Iterator[Piece]:
        """Yield the text of one file in pieces. `text` is the index of its first text within the corpus."""
        if is_table(path):
            rows = filter_invalid(text_rows(path, self.column), skips, skip=self.skip_bad_lines)
            for offset, row in enumerate(rows):
                yield from (Piece(text + offset, piece) for piece in cut(row.cells))
        else:
            for part in _whole_file(path):
                usable_row = next(filter_invalid([part], skips, skip=self.skip_bad_lines, unit="files"), None)
                yield Piece(text, None if usable_row is None else usable_row.cells[0])

    @property
    def state(self) -> State:
        """Name, size and modification time of each file; they reveal whether a file has changed."""
        status = ((file.name, file.stat()) for file in self.files)
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in status]

    def check(self, survey: Survey) -> None:
        """Raise UserError if a file of the corpus has changed since the facts about the corpus were collected."""
        for file, (_, size, time) in zip(self.files, survey.state, strict=True):
            if (file.stat().st_size, file.stat().st_mtime_ns) != (size, time):
                raise UserError(f"{file}: the file changed while it was being read; start again")


@dataclass(frozen=True, eq=False)
class Survey:
    """Facts about the N texts of a corpus, collected by reading the corpus once.

    hashes  (N,) 64-bit hash of each text
    usable  (N,) True for each text that has no fault and is not blank
    long    (K, 2) index and size in bytes of each of the K texts that consist of several pieces
    skips   number of skipped rows or files, by file and reason
    state   name, size and modification time of each file
    """

    hashes: NDArray[np.uint64]
    usable: NDArray[np.bool_]
    long: NDArray[np.int64]
    skips: dict[str, int]
    state: State

    @classmethod
    def of(cls, corpus: Corpus, cache_folder: Path | None) -> Survey:
        """Read a corpus once and return facts about its texts.

        If a directory `cache_folder` is given, the facts are stored there and used again by later calls.
        """
        if cache_folder is None:
            return cls._read(corpus)
        key = json.dumps([FORMAT, corpus.state, corpus.column, corpus.skip_bad_lines])
        return cached(cache_folder, [key], ".corpus", cls._load, lambda path: cls._read(corpus)._save(path))

    @classmethod
    def _load(cls, path: Path) -> Survey:
        with np.load(path, allow_pickle=False) as arrays:
            rest = parse_json(str(arrays["rest"]))
            return cls(arrays["hashes"], arrays["usable"], arrays["long"], rest["skips"], rest["state"])

    def _save(self, path: Path) -> None:
        rest = json.dumps({"skips": self.skips, "state": self.state})
        with path.open("wb") as file:
            np.savez(file, hashes=self.hashes, usable=self.usable, long=self.long, rest=rest)

    @classmethod
    def _read(cls, corpus: Corpus) -> Survey:
        state, skips = corpus.state, Counter[str]()
        survey = cls(*digest_texts(corpus.pieces(skips)), dict(skips), state)
        corpus.check(survey)
        return survey


class Digests(NamedTuple):
    """Hashes and sizes of texts: the fields `hashes`, `usable` and `long` of `Survey`."""

    hashes: NDArray[np.uint64]
    usable: NDArray[np.bool_]
    long: NDArray[np.int64]


def digest_texts(pieces: Iterable[Piece]) -> Digests:
    """Return the hashes and sizes of texts, computed piece by piece because a single text may exceed memory."""
    hashes, usable, long = array("Q"), bytearray(), list[tuple[int, int]]()
    for text, parts in groupby(pieces, key=lambda piece: piece.text):
        digest, size, count, valid, filled = blake2b(digest_size=8), 0, 0, True, False
        for _, piece in parts:
            content = (piece or "").encode()
            digest.update(content)
            size, count = size + len(content), count + 1
            valid, filled = valid and piece is not None, filled or bool((piece or "").strip())
        hashes.append(int.from_bytes(digest.digest()))
        usable.append(valid and filled)
        long += [(text, size)] if count > 1 else []
    return Digests(
        np.array(hashes, np.uint64), np.array(usable, np.bool_), np.array(long, np.int64).reshape(-1, 2)
    )  # fmt: skip


def files_of(corpus: str) -> list[Path]:
    """Return the paths of the files of a corpus: one file, files joined by commas, or those of a directory.

    Raises FileNotFoundError for a path that is neither a file nor a directory.
    """
    files: list[Path] = []
    for name in parts_of(corpus):
        if not name.is_file() and not name.is_dir():  # This check also rejects pipes, because reading a pipe may block.
            fault = "neither a file nor a directory" if name.exists() else "no such file or directory"
            raise FileNotFoundError(f"{name}: {fault}; give a text file, or a directory of text files")
        all_files = (file for file in sorted(name.rglob("*")) if file.is_file())
        visible_files = [
            file for file in all_files if not any(part.startswith(".") for part in file.relative_to(name).parts)
        ]
        files += _without_others(visible_files) if name.is_dir() else [name]
    return files


def _without_others(files: list[Path]) -> list[Path]:
    """Return the files of a directory without binary files, source code and documentation.

    If source code and documentation are larger in total than the other files, they are the text of the corpus, and all
    files are returned.
    """
    sizes = {file: file.stat().st_size for file in files}
    binary = {file for file in files if _is_binary(file)}
    pages = {file for file in files if file.suffix.lower() in SOURCE_SUFFIXES}.difference(binary)
    kept = [file for file in files if file not in binary and file not in pages]
    return kept if sum(map(sizes.__getitem__, kept)) > sum(map(sizes.__getitem__, pages)) else files


def _is_binary(file: Path) -> bool:
    if format_suffix(file) in SUFFIXES or file.suffix.lower() in COMPRESSED:
        return False
    with file.open("rb") as content:
        return b"\0" in content.read(_SAMPLE)


def text_rows(file: Path | Iterable[Row[Cells]], column: str) -> Iterator[Row[tuple[str]]]:
    """Yield the text in a column of a table, row by row. The text of a row may be blank."""

    def text_of(row: Row[Cells]) -> tuple[str]:
        text = row.cells.get(column)
        if not isinstance(text, str):
            raise BadRow(
                f"expected text in column {column!r}", f"rename the column to {column!r}, or train with column=NAME"
            )
        if lone_surrogate(text):
            raise BadRow(f"{column!r} {SURROGATE[0]}", SURROGATE[1])
        return (text,)

    return parse_rows(table(file, columns=(column,)), text_of)


def cut(contents: Iterable[str]) -> Iterator[str]:
    """Concatenate the parts of one text, and yield the text in pieces (see `Piece`). At least one piece is yielded."""
    rest = ""
    for content in contents:
        rest += content
        while len(rest) > MAX_PIECE:
            space, line = rest.rfind(" ", 0, MAX_PIECE), rest.rfind("\n", 0, MAX_PIECE)
            while (end := max(space, line)) > 0 and not rest[end - 1].isalnum():
                if space == end:
                    space = rest.rfind(" ", 0, end)
                else:
                    line = rest.rfind("\n", 0, end)
            end = end if end > 0 else MAX_PIECE  # The text contains no boundary, so it is cut at the maximum size.
            yield rest[:end]
            rest = rest[end:]
    yield rest


def _whole_file(file: Path) -> Iterator[Row[tuple[str]]]:
    """Yield the content of a file as rows that each contain one piece of the text.

    If the file is not UTF-8, the last row contains the fault instead of a piece.
    """
    decoder, line = getincrementaldecoder("utf-8")(), 1

    def decoded() -> Iterator[str]:
        nonlocal line
        with open_decompressed(file) as content:
            data = content.read(READ_SIZE).removeprefix(b"\xef\xbb\xbf")
            while data:
                pending = decoder.getstate()[0]
                try:
                    yield decoder.decode(data)
                except UnicodeDecodeError as error:
                    line += (pending + data).count(b"\n", 0, error.start)
                    raise
                if (nul := data.find(0)) >= 0:
                    line += data.count(b"\n", 0, nul)
                    raise BadRow(*NUL)
                line += data.count(b"\n")
                data = content.read(READ_SIZE)
        yield decoder.decode(b"", final=True)

    try:
        for piece in cut(decoded()):
            yield Row(file, 1, (piece,))
    except UnicodeDecodeError:
        yield Row(file, line, ("",), *UTF8)
    except BadRow as bad:
        yield Row(file, line, ("",), bad.fault, bad.hint)
