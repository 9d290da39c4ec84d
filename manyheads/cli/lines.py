"""One line in, one line out: texts from the arguments, from stdin and from files, and results on one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from manyheads.files import regular

T = TypeVar("T")
CHUNK = 1 << 16  # bytes of stdin that are taken at most before their results are written


def answered(texts: list[str], answer: Callable[[list[str]], Sequence[T]]) -> Iterator[tuple[int, str, T]]:
    """Number, text and answer of every text given or, where none is, of every line of stdin as it arrives.

    An ItemError of `answer` counts from the first of the texts that it was given: it is told of the line of stdin.
    """
    from manyheads.data.text_faults import ItemError

    done = 0
    for chunk in [texts] if texts else stdin():
        try:
            answers = answer(chunk)
        except ItemError as error:
            if texts:
                raise
            raise ValueError(f"<stdin>:{done + error.index + 1}: this text {error.fault}") from error
        yield from zip(range(done + 1, done + len(chunk) + 1), chunk, answers, strict=True)
        done += len(chunk)
        sys.stdout.flush()


def stdin() -> Iterator[list[str]]:
    """The lines of stdin in chunks of what has arrived, so that a slow writer is answered line by line."""
    from manyheads.training.division import read_once

    return read_once(_read())


def _read() -> Iterator[list[str]]:
    if sys.stdin is None:
        raise ValueError("standard input is closed: give the texts as arguments")
    rest, number = b"", 0
    while block := os.read(sys.stdin.fileno(), CHUNK):
        *whole, rest = (rest + block).split(b"\n")
        if whole:
            yield [decode(line, "<stdin>", number + i) for i, line in enumerate(whole, 1)]
            number += len(whole)
    if rest:
        yield [decode(rest, "<stdin>", number + 1)]


def lines_of(file: Path) -> Iterator[str]:
    """The lines of a file. Raises ValueError for a pipe or a device."""
    lines = regular(file).read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        yield decode(line, str(file), number)


def decode(line: bytes, file: str, number: int) -> str:
    """Without what Windows adds: a byte order mark before the first line, a carriage return at the end of each."""
    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{file}:{number}: invalid UTF-8: convert the text, for example with iconv") from None


def one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
