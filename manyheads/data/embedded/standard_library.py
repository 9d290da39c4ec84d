"""Texts from Python's standard library: its source code, and the English prose of its documentation."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from manyheads.data.readers.documents import Document, Documents, sentences


def source_files() -> list[Path]:
    """Return the source code of the standard library's single-file modules, about 5 MB.

    Packages contain many tests and tables and are left out.
    """
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def documentation() -> Documents:
    """Return the documentation that the modules of the standard library contain, more than 1 MB.

    All docstrings of a module form one document. Each topic of the language reference in `help` is another
    document. Repeated sentences are left out.
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
    """Convert text with line breaks into a document: join the lines of each paragraph, then split it into sentences."""
    paragraphs = (" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text))
    return [sentence for paragraph in paragraphs for sentence in sentences(paragraph)]
