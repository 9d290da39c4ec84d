"""Python's standard library: its source text, and the English prose of its documentation."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from manyheads.data.readers.documents import Document, Documents, sentences


def source_files() -> list[Path]:
    """The modules of the standard library (about 5 MB). Packages are left out: much of theirs is tests and tables."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def documentation() -> Documents:
    """The documentation inside the modules, more than 1 MB.

    The docstrings of a module are one document, and so is every topic of the language reference that `help` shows. A
    sentence that occurs again is left out.
    """
    import pydoc_data.topics

    documents = [_prose([topic]) for topic in pydoc_data.topics.topics.values()]
    for file in source_files():
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = (node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, kinds))
        documents.append(_prose(ast.get_docstring(node) or "" for node in nodes))
    known: set[str] = set()
    distinct = []
    for document in documents:
        new = [sentence for sentence in dict.fromkeys(document) if sentence not in known]
        known.update(new)
        if new:
            distinct.append(new)
    return Documents.of(distinct)


def _prose(texts: Iterable[str]) -> Document:
    """Texts whose lines are wrapped, as one document: paragraphs are joined before they are cut into sentences."""
    paragraphs = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return [sentence for paragraph in paragraphs for sentence in sentences(paragraph)]
