"""Running text as documents of sentences, from files or from the documentation inside Python's standard library.

A corpus is a text file, where blank lines separate documents, a .jsonl or .parquet file with a text in every row, or a
directory of such files. Lines end sentences, and so does HTML's line break; within a line they are told by punctuation.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from manyheads.data.splits import SURROGATE, UTF8, half_character, held_out, lines_of
from manyheads.data.store import fingerprint

Document = list[str]  # sentences
SUFFIXES = (".txt", ".jsonl", ".parquet")

BREAK = "<br ?/?>"
_LINES = re.compile(rf"\n|{BREAK}")
# white space after a stop, perhaps a closed quotation, and before what can begin a sentence
_STOPS = re.compile(r"""(?:(?<=[.!?…])|(?<=[.!?…]["'”’)\]]))\s+(?=["'“‘(\[]?[^\Wa-z_])""")


def sentences(text: str) -> Document:
    """The sentences of a text, without the blanks around them."""
    found = [sentence.strip() for line in _LINES.split(text) for sentence in _STOPS.split(line)]
    return [sentence for sentence in found if sentence]


def read_documents(data: str | Path, *, column: str = "text", skip_bad_lines: bool = False) -> list[Document]:
    """Every document of a corpus (forms above), in the order of files and rows; blank ones are left out.

    column  of a .jsonl or .parquet file that holds the text
    Raises FileNotFoundError or a one-line ValueError that names file, line and remedy.
    """
    path = Path(data)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise FileNotFoundError(f"{path}: no text there; expected files ending in {', '.join(SUFFIXES)}")
    found: list[Document] = []
    skipped = 0
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file; give a text file, or a directory of {', '.join(SUFFIXES)}")
        for place, text in _texts(file, column):
            if isinstance(text, _Fault):
                if not skip_bad_lines:
                    raise ValueError(f"{place}: {text}, or skip such lines with --skip-bad-lines")
                skipped += 1
            elif document := sentences(text):
                found.append(document)
    if skipped:
        print(f"skipped {skipped:,} faulty lines of {path}", file=sys.stderr)
    if not found:
        raise ValueError(f"{path}: no text in it; expected documents separated by blank lines, or one a row")
    return found


def split_documents(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """(for training, held out for validation: 5%), by a hash of what each says."""
    kept, held = held_out(["\n".join(document) for document in documents], what="document")
    return [documents[i] for i in kept], [documents[i] for i in held]


def fingerprint_of(documents: Sequence[Document]) -> str:
    return fingerprint(["\n".join(document) for document in documents])


class _Fault(str):
    """Why a row cannot be used, and what would be right."""


def _texts(file: Path, column: str) -> Iterator[tuple[str, str | _Fault]]:
    """Documents, each with its place."""
    if file.suffix == ".parquet":
        yield from _parquet(file, column)
    elif file.suffix == ".jsonl":
        for number, line in enumerate(lines_of(file), 1):
            if line is None or line.strip():
                yield f"{file}:{number}", _Fault("; ".join(UTF8)) if line is None else _record(line, column)
    else:
        paragraph: list[str] = []
        for number, line in enumerate([*lines_of(file), ""], 1):
            if line is None:
                yield f"{file}:{number}", _Fault("; ".join(UTF8))
            elif line.strip():
                paragraph.append(line)
            elif paragraph:
                yield f"{file}:{number - len(paragraph)}", "\n".join(paragraph)
                paragraph = []


def _record(line: str, column: str) -> str | _Fault:
    try:
        record = json.loads(line)
    except ValueError as error:
        return _Fault(f"not JSON ({getattr(error, 'msg', error)}); write one object a line")
    text = record.get(column) if isinstance(record, dict) else None
    if not isinstance(text, str):
        return _Fault(f"no text in {column!r}; name the key with column=NAME")
    return _Fault(f"{column!r} {SURROGATE[0]}; {SURROGATE[1]}") if half_character(text) else text


def _parquet(file: Path, column: str) -> Iterator[tuple[str, str | _Fault]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        if column not in table.schema_arrow.names:
            names = ", ".join(table.schema_arrow.names)
            raise ValueError(f"{file}: no column {column!r}; it has {names}: name one with column=NAME")
        number = 0
        for batch in table.iter_batches(columns=[column]):
            for text in batch.column(0).to_pylist():
                number += 1
                yield f"{file}:{number}", text if isinstance(text, str) else _Fault("no text there; fill it in")
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file}: not a Parquet file ({str(error).splitlines()[0]}); write it again") from None


def standard_library() -> list[Document]:
    """The documentation inside Python's standard library, English prose that every machine has (more than 1 MB).

    The docstrings of a module are one document, and so is every topic of the language reference that `help` shows.
    Packages are left out: much of theirs is tests, tables and copies.
    """
    import pydoc_data.topics

    root = Path(sysconfig.get_path("stdlib"))
    found = [_prose(pydoc_data.topics.topics.values(), apart=True)]
    for file in sorted(root.glob("*.py")):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = (node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, kinds))
        found.append(_prose(ast.get_docstring(node) or "" for node in nodes))
    seen: set[str] = set()
    documents = []
    for document in (document for several in found for document in several):
        new = [sentence for sentence in dict.fromkeys(document) if sentence not in seen]  # much is repeated
        seen.update(new)
        if new:
            documents.append(new)
    return documents


def _prose(texts: Iterable[str], *, apart: bool = False) -> list[Document]:
    """Texts whose lines are wrapped, as one document or as many; paragraphs are joined before they are cut."""
    documents = []
    for text in texts:
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
        documents.append([sentence for paragraph in paragraphs for sentence in sentences(paragraph)])
    return documents if apart else [[sentence for document in documents for sentence in document]]
