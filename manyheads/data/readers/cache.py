"""Cache of files that are derived from other data, such as token ids of a corpus.

The name of a file is a fingerprint of everything that its content depends on. A changed input therefore gives a file
with another name, and a file never becomes stale.
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
    """Load a file of the cache. If it is missing or damaged, it is written first.

    folder  directory of the cache, which is created if necessary
    key     all inputs on which the content of the file depends, with the version of its format
    suffix  suffix of the file name
    load    function that loads the file. For a damaged file it raises ValueError, TypeError, KeyError or EOFError
    write   function that writes the file. It is called with a temporary path, so that a file is never incomplete

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
