"""Built-in corpora that are stored as files in the package, so that the default corpora require no locale data.

`python -m lab.embedded_corpora` writes these files. Corpora for other locales, seeds and sizes are generated with the
library Babel (extra `locales`).
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeVar

from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import Data, SplitData
from manyheads.errors import extra

FOLDER = files("manyheads.data.embedded") / "corpora"
SUFFIX = ".json.xz"

Columns = list[tuple[list[Any], list[Any]]]  # two columns of values for each split
D = TypeVar("D", bound=Data)


def pairs(source: str, target: str, *, seed: int, size: int) -> SplitData[Pairs]:
    """Return the built-in corpus of sentence pairs (see `phrases.cldr_pairs` for the arguments).

    The corpus is read from a file of the package if there is one with these arguments, and otherwise generated.
    """

    def generate() -> SplitData[Pairs]:
        from manyheads.data.embedded.phrases import cldr_pairs

        return cldr_pairs(source, target, seed=seed, size=size)

    return _corpus(f"pairs-{source}-{target}-seed{seed}-size{size}", Pairs, generate)


def languages(*, seed: int, size: int) -> SplitData[Labeled]:
    """Return the built-in corpus of phrases in 60 languages (see `languages.cldr_languages` for the arguments).

    The corpus is read from a file of the package if there is one with these arguments, and otherwise generated.
    """

    def generate() -> SplitData[Labeled]:
        from manyheads.data.embedded.languages import cldr_languages

        return cldr_languages(seed=seed, size=size)

    return _corpus(f"languages-seed{seed}-size{size}", Labeled, generate)


def tagged(locale: str, *, seed: int, size: int) -> SplitData[Tagged]:
    """Return the built-in corpus of tagged phrases (see `tags.cldr_tagged` for the arguments).

    The corpus is read from a file of the package if there is one with these arguments, and otherwise generated.
    """

    def generate() -> SplitData[Tagged]:
        from manyheads.data.embedded.tags import cldr_tagged

        return cldr_tagged(locale, seed=seed, size=size)

    return _corpus(f"tags-{locale}-seed{seed}-size{size}", Tagged, generate)


def names() -> list[str]:
    """Return the names of the corpora that are files of the package. A name states kind, locales, seed and size."""
    return sorted(file.name.removesuffix(SUFFIX) for file in FOLDER.iterdir() if file.name.endswith(SUFFIX))


def _corpus(name: str, make: Callable[[list[Any], list[Any]], D], generate: Callable[[], SplitData[D]]) -> SplitData[D]:
    """Read a corpus from the package. If the package does not contain it, generate it with the library Babel.

    If Babel is missing, the error names the extra to install, and the corpora that do not require Babel.
    """
    available = names()
    if name not in available:
        with extra("locales", f"the built-in corpus {name} (available without an extra: {', '.join(available)})"):
            return generate()
    columns: Columns = json.loads(lzma.decompress((FOLDER / f"{name}{SUFFIX}").read_bytes()))
    train, validation, test = [make(first, second) for first, second in columns]
    return SplitData(train, validation, test)
