"""One line in, one line out: texts from the arguments, from stdin and from files, and results on one line each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from manyheads.errors import UserError
from manyheads.files import regular

T = TypeVar("T")
CHUNK = 1 << 16  # bytes of stdin that are taken at most before their results are written


def answered(texts: list[str], answer: Callable[[list[str]], Sequence[T]]) -> Iterator[tuple[int, str, T]]:
    """Number, text and answer of every text given or, where none is, of every line of stdin as it arrives.

    An ItemError of `answer` counts from the first of the texts that it was given: it is told of the line of stdin.
    """
    from manyheads.data.text.text_faults import ItemError

    done = 0
    for chunk in [texts] if texts else stdin():
        try:
            answers = answer(chunk)
        except ItemError as error:
            if texts:
                raise
            raise UserError(f"<stdin>:{done + error.index + 1}: this text {error.fault}") from error
        yield from zip(range(done + 1, done + len(chunk) + 1), chunk, answers, strict=True)
        done += len(chunk)
        sys.stdout.flush()


def stdin() -> Iterator[list[str]]:
    """The lines of stdin in chunks of what has arrived, so that a slow writer is answered line by line."""
    from manyheads.training.distributed_map import read_once

    return read_once(_read())


def _read() -> Iterator[list[str]]:
    if sys.stdin is None:
        raise UserError("standard input is closed: give the texts as arguments")
    from manyheads.data.readers.splits import LONGEST_LINE

    begun, held, number = list[bytes](), 0, 0  # the blocks of a line that has not ended, and their bytes
    while block := os.read(sys.stdin.fileno(), CHUNK):
        end, *more = block.split(b"\n")
        begun.append(end)
        held += len(end)
        if held > LONGEST_LINE:
            raise UserError(f"<stdin>:{number + 1}: a line of more than {LONGEST_LINE:,} bytes; cut it into several")
        if more:
            whole = [b"".join(begun), *more[:-1]]
            begun, held = [more[-1]], len(more[-1])
            yield [decode(line, "<stdin>", number + i) for i, line in enumerate(whole, 1)]
            number += len(whole)
    if held:
        yield [decode(b"".join(begun), "<stdin>", number + 1)]


def lines_of(file: Path) -> Iterator[str]:
    """The lines of a file. Raises UserError for a pipe or a device."""
    lines = regular(file).read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        yield decode(line, str(file), number)


def text_of(file: Path) -> str:
    """All of a file as it is, so that its characters count as in the file. Raises UserError for a pipe or a device."""
    try:
        return regular(file).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: invalid UTF-8: convert the text, for example with iconv") from None


def decode(line: bytes, file: str, number: int) -> str:
    """Without what Windows adds: a byte order mark before the first line, a carriage return at the end of each."""
    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}:{number}: invalid UTF-8: convert the text, for example with iconv") from None


def one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
