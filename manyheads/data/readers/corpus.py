"""Running text in files, read a piece at a time: a corpus may be larger than memory.

A corpus is a file, several joined by commas, or a directory of them with what is below it, hidden files left out. A
table (`rows.py`) has a text in every row; any other file is one text. All but Parquet may be compressed (.gz, .zst).
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
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.compressed import AT_ONCE, kind, opened
from manyheads.data.readers.rows import TABLES, BadRow, Cells, Row, filter_invalid, parsed, table
from manyheads.data.readers.splits import SURROGATE, UTF8, half_character, parts_of
from manyheads.errors import UserError
from manyheads.files import fingerprint, parse_json, replacing

PIECE = 2**20  # characters of a piece at most
FIRST = 2**20  # bytes of a text file of which only the first part is read
FORMAT = "corpus-1"  # change it with what is kept of a corpus


class Piece(NamedTuple):
    """Part of a text. A text is cut before a blank or a line end behind a letter or a digit, where the words of
    byte-level BPE end, too: to cut it changes no token."""

    text: int  # its number in the corpus
    content: str | None  # None: this text is faulty, with all its pieces, and has been told


@dataclass(frozen=True)
class Corpus:
    """The files of texts, in their order.

    column          of tables that holds the text
    skip_bad_lines  leave out faulty rows, and files that are not UTF-8
    limit           how many texts are read at most, and of a text file only the first part
    """

    files: tuple[Path, ...]
    column: str = "text"
    skip_bad_lines: bool = False
    limit: int | None = None

    def pieces(self, file: int, text: int) -> Iterator[Piece]:
        """All there is from a file on; `text` is the number of its first text."""
        for number in range(file, len(self.files)):
            piece = None
            for piece in self.of_file(number, text, Counter()):
                yield piece
            text = text if piece is None else piece.text + 1

    def of_file(self, number: int, text: int, skips: Counter[str]) -> Iterator[Piece]:
        """All there is in a file."""
        path = self.files[number]
        if kind(path) in TABLES:
            rows = filter_invalid(text_rows(path, self.column), skips, skip=self.skip_bad_lines)
            for offset, row in enumerate(rows):
                yield from (Piece(text + offset, piece) for piece in cut(row.cells))
        else:
            for part in _whole(path) if self.limit is None else _first(path):
                sound = next(filter_invalid([part], skips, skip=self.skip_bad_lines, unit="files"), None)
                yield Piece(text, None if sound is None else sound.cells[0])

    @property
    def state(self) -> list[list[Any]]:
        """What tells whether a file has changed."""
        status = ((str(file.absolute()), file.stat()) for file in self.files)
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in status]

    def check(self, survey: Survey) -> None:
        """Raises UserError where a file is not what it was."""
        for file, (_, size, time) in zip(self.files, survey.state, strict=True):
            if (file.stat().st_size, file.stat().st_mtime_ns) != (size, time):
                raise UserError(f"{file}: the file has changed while it was in use; start again")


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known of a corpus that has been read once.

    hashes  (N,) of the texts
    usable  (N,) whether a text has no fault and is not blank
    long    (K, 2) of the texts of several pieces: their numbers and their bytes
    starts  (F, 2) of every file: the number of its first text, and of its first piece
    skips   what was left out, by file and reason
    state   of the files
    """

    hashes: NDArray[np.uint64]
    usable: NDArray[np.bool_]
    long: NDArray[np.int64]
    starts: NDArray[np.int64]
    skips: dict[str, int]
    state: list[list[Any]]

    @classmethod
    def of(cls, corpus: Corpus, kept: Path | None) -> Survey:
        """Read; or found in the directory `kept`, where it is left for the next time."""
        if kept is None:
            return cls._read(corpus)
        settings = [FORMAT, corpus.state, corpus.column, corpus.skip_bad_lines, corpus.limit]
        path = kept / f"{fingerprint([json.dumps(settings)])}.corpus"
        try:
            with np.load(path, allow_pickle=False) as arrays:
                rest = parse_json(str(arrays["rest"]))
                return cls(*(arrays[name] for name in _ARRAYS), **rest)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # there is none, or part of one
            survey = cls._read(corpus)
        kept.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            rest = json.dumps({"skips": survey.skips, "state": survey.state})
            np.savez(file, rest=rest, **{name: getattr(survey, name) for name in _ARRAYS})
        return survey

    @classmethod
    def _read(cls, corpus: Corpus) -> Survey:
        state, skips = corpus.state, Counter[str]()
        hashes, usable, long, starts = array("Q"), bytearray(), list[tuple[int, int]](), list[tuple[int, int]]()
        count = used = 0  # pieces, and usable texts
        for number in range(len(corpus.files)):
            starts.append((len(hashes), count))
            for _, pieces in groupby(corpus.of_file(number, len(hashes), skips), key=lambda piece: piece.text):
                digest, size, parts, sound, filled = blake2b(digest_size=8), 0, 0, True, False
                for piece in pieces:
                    content = (piece.content or "").encode()
                    digest.update(content)
                    size, parts = size + len(content), parts + 1
                    sound, filled = sound and piece.content is not None, filled or bool((piece.content or "").strip())
                hashes.append(int.from_bytes(digest.digest()))
                usable.append(sound and filled)
                long += [(len(hashes) - 1, size)] if parts > 1 else []
                count, used = count + parts, used + usable[-1]
                if used == corpus.limit:
                    break
            if used == corpus.limit:
                break
        pairs = [np.array(entries, dtype=np.int64).reshape(-1, 2) for entries in (long, starts)]
        known = np.array(hashes, dtype=np.uint64), np.array(usable, dtype=np.bool_)
        survey = cls(known[0], known[1], pairs[0], pairs[1], dict(skips), state)
        corpus.check(survey)
        return survey


_ARRAYS = ("hashes", "usable", "long", "starts")


def files_of(path: str) -> list[Path]:
    files: list[Path] = []
    for name in parts_of(path):
        if not name.is_file() and not name.is_dir():  # nor a pipe, which would be waited for
            fault = "neither a file nor a directory" if name.exists() else "no such file or directory"
            raise FileNotFoundError(f"{name}: {fault}; give a text file, or a directory of them")
        below = (file for file in sorted(name.rglob("*")) if file.is_file())
        shown = [file for file in below if not any(part.startswith(".") for part in file.relative_to(name).parts)]
        files += shown if name.is_dir() else [name]
    return [file.absolute() for file in files]


def text_rows(file: Path, column: str) -> Iterator[Row[tuple[str]]]:
    """The text of each row of a table, blank or not."""

    def text_of(row: Row[Cells]) -> tuple[str]:
        text = row.cells.get(column)
        if not isinstance(text, str):
            raise BadRow(f"no text in {column!r}", f"name the column {column!r}, or train with column=NAME")
        if half_character(text):
            raise BadRow(f"{column!r} {SURROGATE[0]}", SURROGATE[1])
        return (text,)

    return parsed(table(file, columns=(column,)), text_of)


def cut(contents: Iterable[str]) -> Iterator[str]:
    """A text that comes in parts, in pieces (see `Piece`): at least one."""
    rest = ""
    for content in contents:
        rest += content
        while len(rest) > PIECE:
            space, line = rest.rfind(" ", 0, PIECE), rest.rfind("\n", 0, PIECE)
            while (end := max(space, line)) > 0 and not rest[end - 1].isalnum():
                if space == end:  # the other one is still the last before it
                    space = rest.rfind(" ", 0, end)
                else:
                    line = rest.rfind("\n", 0, end)
            end = end if end > 0 else PIECE  # nowhere
            yield rest[:end]
            rest = rest[end:]
    yield rest


def _whole(file: Path) -> Iterator[Row[tuple[str]]]:
    """A file as one text, in pieces; where it is not UTF-8, the last one says so."""
    decoder, line = getincrementaldecoder("utf-8")(), 1

    def decoded() -> Iterator[str]:
        nonlocal line
        with opened(file) as content:
            data = content.read(AT_ONCE).removeprefix(b"\xef\xbb\xbf")
            while data:
                pending = decoder.getstate()[0]
                try:
                    yield decoder.decode(data)
                except UnicodeDecodeError as error:
                    line += (pending + data).count(b"\n", 0, error.start)
                    raise
                line += data.count(b"\n")
                data = content.read(AT_ONCE)
        yield decoder.decode(b"", final=True)

    try:
        for piece in cut(decoded()):
            yield Row(file, 1, (piece,))
    except UnicodeDecodeError:
        yield Row(file, line, ("",), *UTF8)


def _first(file: Path) -> Iterator[Row[tuple[str]]]:
    """Only the first bytes of a file, up to the last line end or, in one long line, character in them."""
    with opened(file) as content:
        data = content.read(FIRST).removeprefix(b"\xef\xbb\xbf")
        whole = not content.read(1)
    if not whole:
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        yield Row(file, 1, (getincrementaldecoder("utf-8")().decode(data, final=whole),))
    except UnicodeDecodeError as error:
        yield Row(file, data.count(b"\n", 0, error.start) + 1, ("",), *UTF8)
