"""Line-based input and output of the commands: read texts, and write one result per line.

Texts are read from arguments, stdin or files.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from manyheads.cli.output import document
from manyheads.errors import UserError
from manyheads.files import JsonObject, regular

T = TypeVar("T")
ONE_TEXT = 'to read it, give its content: "$(cat {})"'  # hint of a command that takes one text
CHUNK = 1 << 16  # maximum number of bytes read from stdin before the results of a chunk are written


def skip_image(fault: str, number: int, options: argparse.Namespace) -> None:
    """Print that an image is skipped. Raise UserError without the option --skip-bad-images.

    number  number of the line of stdin that names the image, if the command has no arguments
    """
    fault = fault if options.rest else f"<stdin>:{number}: {fault}"
    if not options.skip_bad_lines:
        raise UserError(f"{fault}. To skip such images, pass --skip-bad-images")
    print(f"manyheads: skipped: {fault}", file=sys.stderr)


def answered(
    texts: list[str], answer: Callable[[list[str]], Sequence[T]], file: str | None = None
) -> Iterator[tuple[int, str, T]]:
    """Yield (number, text, answer) for each text in `texts`, or for each line of stdin if `texts` is empty.

    Texts and lines are numbered from 1. Lines of stdin are answered as they arrive. Raises UserError if there are none.
    `file` is the file that contains the lines `texts`, for error messages.

    `answer` is a function that computes the results of a chunk of texts. If this function raises ItemError (with
    the index of a text in the chunk), a UserError with the line number in stdin is raised instead.
    """
    from manyheads.data.text.text_faults import ItemError

    done = 0
    for chunk in [texts] if texts or file is not None else stdin():
        try:
            answers = answer(chunk)
        except ItemError as error:
            if texts and file is None:
                raise
            raise UserError(f"{file or '<stdin>'}:{done + error.index + 1}: this text {error.fault}") from error
        yield from zip(range(done + 1, done + len(chunk) + 1), chunk, answers, strict=True)
        done += len(chunk)
        sys.stdout.flush()
    if not done:
        raise UserError(f"{file or '<stdin>'}: found no texts: give one a line")


def print_answers(
    options: argparse.Namespace,
    answer: Callable[[list[str]], Sequence[T]],
    as_json: Callable[[str, T], JsonObject],
    as_lines: Callable[[int, T], Iterable[str]],
) -> None:
    """Print the answer for each text of a command, as lines, or as one JSON document if the user wants JSON.

    answer    function that computes the answers for a chunk of texts, see `answered`
    as_json   function of a text and its answer
    as_lines  function of the number of a text, from 1, and its answer
    """
    answers = answered(options.rest, answer)
    if options.json:
        return document([as_json(text, found) for _, text, found in answers])
    for index, _, found in answers:
        for line in as_lines(index, found):
            print(line)


def refuse_files(texts: Sequence[str], hint: str = "to read its lines, use < {0}; to use its name, echo {0} |") -> None:
    """Raise UserError for a text that is the name of an existing file, because the command would read the name."""
    for text in texts:
        if 0 < len(text) < 256 and "\0" not in text and Path(text).is_file():
            raise UserError(f"{text} is a file, but a text is expected: {hint.format(text)}")


def stdin() -> Iterator[list[str]]:
    """Yield the lines of stdin in chunks. A chunk contains the lines that are available.

    Each line of a slow input is therefore answered as it arrives.
    """
    from manyheads.training.distributed_map import read_once

    return read_once(_read())


def _read() -> Iterator[list[str]]:
    if sys.stdin is None:
        raise UserError("standard input is closed: pass the texts as arguments")
    from manyheads.data.readers.splits import MAX_LINE_BYTES

    # blocks of an incomplete line, their total size in bytes, and the count of complete lines
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


def read_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a file. Raise UserError for a pipe or a device."""
    lines = regular(file).read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        yield decode(line, str(file), number)


def read_text(file: Path) -> str:
    """Return the text of a file without any change, so that character offsets match those in the file.

    Raise UserError for a pipe or a device.
    """
    try:
        return regular(file).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: expected UTF-8: convert the text, for example with iconv") from None


def decode(line: bytes, file: str, number: int) -> str:
    """Decode a line of input. Remove a carriage return at its end and, on the first line, a byte order mark."""
    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}:{number}: expected UTF-8: convert the text, for example with iconv") from None


def one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")
