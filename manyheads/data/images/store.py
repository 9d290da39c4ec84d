"""Temporary file for images that are not in separate files, such as images in a Parquet file.

All processes of a run map this file into memory. The worker processes therefore share one copy of the images, and the
operating system can drop the copy's pages if memory is short.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.errors import UserError

SKIPPED_FILE = "skipped.txt"  # file with the place and the fault of each skipped image
_PREFIX = "images-"


class Store:
    """Temporary file of images. The file is removed when this object is deleted.

    If the object is pickled and loaded in another process, both processes read the same file.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Create the file in the directory `folder`, which is created if necessary.

        If `folder` is None, the system's directory for temporary files is used.
        """
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix=_PREFIX)
        except OSError as error:
            raise UserError(f"{folder or tempfile.gettempdir()}: failed to write: {error.strerror}") from error
        self.name, self._size = name, 0
        self._file: BinaryIO | None = os.fdopen(handle, "wb")
        self._map: mmap.mmap | None = None
        weakref.finalize(self, _remove, self._file, name)

    def add(self, image: bytes | NDArray[np.uint8]) -> Stored:
        """Append an image: the bytes of an image file, or pixels (Y, X) or (Y, X, 3).

        Raises UserError if the disk is full.
        """
        shape = None if isinstance(image, bytes) else image.shape
        content = image if isinstance(image, bytes) else image.tobytes()
        assert self._file is not None, "a copy in another process is read-only"
        try:
            self._file.write(content)
        except OSError as error:
            folder = Path(self.name).parent
            raise UserError(f"{folder}: failed to write images: {error.strerror}; free disk space") from error
        self._size += len(content)
        return Stored(self, self._size - len(content), len(content), shape)

    def content(self, start: int, size: int) -> memoryview:
        """Return a range of bytes of the file as a view, without copying them."""
        if self._map is None or len(self._map) < start + size:
            if self._file is not None:
                self._file.flush()
            with open(self.name, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)[start : start + size]

    def __getstate__(self) -> str:
        if self._file is not None:
            self._file.flush()
        return self.name

    def __setstate__(self, name: str) -> None:
        self.name, self._file, self._map = name, None, None


class Stored(NamedTuple):
    """Location of an image in the temporary file of a `Store`.

    start, size  offset and number of bytes in the file
    shape        shape of the pixels. If None, the bytes are an encoded image file
    """

    store: Store
    start: int
    size: int
    shape: tuple[int, ...] | None

    def image(self) -> bytes | NDArray[np.uint8]:
        content = self.store.content(self.start, self.size)
        return bytes(content) if self.shape is None else np.frombuffer(content, np.uint8).reshape(self.shape)


def clear(folder: Path) -> None:
    """Remove temporary files that a killed process has left behind. No other process may be using the folder."""
    for file in folder.glob(f"{_PREFIX}*"):
        file.unlink(missing_ok=True)
    (folder / SKIPPED_FILE).unlink(missing_ok=True)


def _remove(file: BinaryIO, name: str) -> None:
    file.close()
    Path(name).unlink(missing_ok=True)
