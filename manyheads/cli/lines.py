"""Line-based input and output: texts from arguments, stdin and files, and one result per line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from manyheads.errors import UserError
from manyheads.files import regular

T = TypeVar("T")
CHUNK = 1 << 16  # maximum number of bytes read from stdin before results are written


def answered(texts: list[str], answer: Callable[[list[str]], Sequence[T]]) -> Iterator[tuple[int, str, T]]:
    """Yield number, text and answer for each of `texts` or, without any, for each line of stdin as it arrives.

    An ItemError of `answer`, whose index counts from the start of a chunk, becomes a UserError with the line of stdin.
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
    """Yield the available lines of stdin, so that a slow writer is answered line by line."""
    from manyheads.training.distributed_map import read_once

    return read_once(_read())


def _read() -> Iterator[list[str]]:
    if sys.stdin is None:
        raise UserError("standard input is closed: pass the texts as arguments")
    from manyheads.data.readers.splits import MAX_LINE_BYTES

    # blocks of an incomplete line, their total bytes, and the number of complete lines
    begun, held, number = list[bytes](), 0, 0
    while block := os.read(sys.stdin.fileno(), CHUNK):
        end, *more = block.split(b"\n")
        begun.append(end)
        held += len(end)
        if held > MAX_LINE_BYTES:
            raise UserError(f"<stdin>:{number + 1}: line longer than {MAX_LINE_BYTES:,} bytes: split it")
        if more:
            whole = [b"".join(begun), *more[:-1]]
            begun, held = [more[-1]], len(more[-1])
            yield [decode(line, "<stdin>", number + i) for i, line in enumerate(whole, 1)]
            number += len(whole)
    if held:
        yield [decode(b"".join(begun), "<stdin>", number + 1)]


def lines_of(file: Path) -> Iterator[str]:
    """Yield the lines of a file. Raise UserError for a pipe or a device."""
    lines = regular(file).read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        yield decode(line, str(file), number)


def text_of(file: Path) -> str:
    """Return the unchanged text of a file, so that character offsets match it.

    Raise UserError for a pipe or a device.
    """
    try:
        return regular(file).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: expected UTF-8: convert the text, for example with iconv") from None


def decode(line: bytes, file: str, number: int) -> str:
    """Decode a line. Remove a byte order mark before the first line and a carriage return at the end."""
    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}:{number}: expected UTF-8: convert the text, for example with iconv") from None


def one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
