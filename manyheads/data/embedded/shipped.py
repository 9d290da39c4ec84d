"""Embedded corpora that are stored as files in the package, so that the default corpora require no locale data.

`python -m lab.embedded_corpora` writes these files. Corpora for other locales, seeds and sizes are generated with the
library Babel (extra `locales`).
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, TypeVar

from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import Data, SplitData
from manyheads.errors import extra

FOLDER = files("manyheads.data.embedded") / "corpora"
SUFFIX = ".json.xz"

Columns = list[tuple[list[Any], list[Any]]]  # names of the two columns in the file of each split
D = TypeVar("D", bound=Data)


def pairs(source: str, target: str, *, seed: int, size: int) -> SplitData[Pairs]:
    """Return the embedded corpus of sentence pairs (`phrases.cldr_pairs`).

    It is read from the package if possible, and otherwise generated.
    """
    name = f"pairs-{source}-{target}-seed{seed}-size{size}"
    if (columns := _read(name)) is not None:
        return _splits(columns, Pairs)
    with _babel(name):
        from manyheads.data.embedded.phrases import cldr_pairs
    return cldr_pairs(source, target, seed=seed, size=size)


def languages(*, seed: int, size: int) -> SplitData[Labeled]:
    """Return the embedded corpus of phrases in 60 languages (`languages.cldr_languages`).

    It is read from the package if possible, and otherwise generated.
    """
    name = f"languages-seed{seed}-size{size}"
    if (columns := _read(name)) is not None:
        return _splits(columns, Labeled)
    with _babel(name):
        from manyheads.data.embedded.languages import cldr_languages
    return cldr_languages(seed=seed, size=size)


def tagged(locale: str, *, seed: int, size: int) -> SplitData[Tagged]:
    """Return the embedded corpus of tagged phrases (`tags.cldr_tagged`).

    It is read from the package if possible, and otherwise generated.
    """
    name = f"tags-{locale}-seed{seed}-size{size}"
    if (columns := _read(name)) is not None:
        return _splits(columns, Tagged)
    with _babel(name):
        from manyheads.data.embedded.tags import cldr_tagged
    return cldr_tagged(locale, seed=seed, size=size)


def _splits(columns: Columns, make: Callable[[list[Any], list[Any]], D]) -> SplitData[D]:
    train, validation, test = [make(first, second) for first, second in columns]
    return SplitData(train, validation, test)


def names() -> list[str]:
    """Return the name of each corpus in the package, with its kind, locales, seed and size."""
    return sorted(file.name.removesuffix(SUFFIX) for file in FOLDER.iterdir() if file.name.endswith(SUFFIX))


def _read(name: str) -> Columns | None:
    if name not in names():
        return None
    columns: Columns = json.loads(lzma.decompress((FOLDER / f"{name}{SUFFIX}").read_bytes()))
    return columns


def _babel(name: str) -> AbstractContextManager[None]:
    """Return a context manager that reports an error if the code inside it needs the library Babel, which is missing.

    The error names the extra to install, and the corpora that do not require Babel.
    """
    return extra("locales", f"the embedded corpus {name} (available without an extra: {', '.join(names())})")
