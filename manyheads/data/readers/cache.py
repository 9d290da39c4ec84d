"""Disk cache of files that are computed from a corpus, such as its token ids.

The name of a cached file is a fingerprint of everything that the file's content depends on. If an input changes, the
name changes, too, so a stale file is never read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

from manyheads.files import fingerprint, replacing

T = TypeVar("T")


def cached(
    folder: Path, key: Iterable[str | bytes], suffix: str, load: Callable[[Path], T], write: Callable[[Path], None]
) -> T:
    """Load a file from the cache and return its content. If the file is missing or damaged, write it first.

    folder  directory of the cache, which is created if necessary
    key     all inputs on which the content of the file depends, with the version of the file's format
    suffix  suffix of the file name
    load    function that loads the file. For a damaged file it raises ValueError, TypeError, KeyError or EOFError
    write   function that computes the content and writes it to the path that it is called with. This path is
            temporary and is renamed at the end, so the cache never contains an incomplete file

    Raises WriteError if the file cannot be written.
    """
    path = folder / f"{fingerprint(key)}{suffix}"
    if path.exists():
        try:
            return load(path)
        except (ValueError, TypeError, KeyError, EOFError, BadZipFile):
            warnings.warn(f"{path}: the file is damaged; rebuilding it now", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        write(temporary)
    return load(path)
