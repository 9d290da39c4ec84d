"""Files that may be compressed: `a.jsonl.gz` and `a.jsonl.zst` are read as `a.jsonl` is, a little at a time."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from manyheads.errors import UserError, extra

COMPRESSED = (".gz", ".zst")
AT_ONCE = 2**20  # bytes that are read of a file at a time
MOST_EXPANDED = 200  # times its size that a file may expand to: texts do to 3 to 20 times
UNCHECKED = 2**26  # bytes that any file may expand to


def kind(file: str | Path) -> str:
    """The ending that tells the format: ".jsonl" of a.jsonl, a.jsonl.gz and a.jsonl.zst."""
    path = Path(file)
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def opened(file: Path) -> BinaryIO:
    """The bytes of a file, expanded as they are read.

    Reading raises a one-line UserError where a compressed file is torn, or expands to more than any text would.
    """
    if file.suffix not in COMPRESSED:
        return file.open("rb")
    return io.BufferedReader(_Expanded(file), AT_ONCE)


class _Expanded(io.RawIOBase):
    def __init__(self, file: Path) -> None:
        self._path, self._read = file, 0
        self._most = max(UNCHECKED, MOST_EXPANDED * file.stat().st_size)
        self._inner: Any
        if file.suffix == ".gz":
            self._inner = gzip.GzipFile(file)
        else:
            with extra("parquet", "a .zst file"):
                import pyarrow

            self._inner = pyarrow.input_stream(str(file), compression="zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            size: int = self._inner.readinto(buffer)  # its read() loses the memory that it reads into where it raises
        except (OSError, EOFError, zlib.error) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"{self._path}: torn or damaged behind byte {self._read:,} of its content ({reason}); write it again"
            ) from None
        self._read += size
        if self._read > self._most:
            raise UserError(
                f"{self._path}: it expands to more than {self._most:,} bytes, {MOST_EXPANDED} times its size, as no"
                " text does; expand it yourself if it is one"
            )
        return size

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()
