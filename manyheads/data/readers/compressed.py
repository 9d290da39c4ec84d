"""Reader of compressed text files.

The files `a.jsonl.gz` and `a.jsonl.zst` can be read like `a.jsonl`; they are decompressed on the fly.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from manyheads.errors import UserError, extra

COMPRESSED = (".gz", ".zst")
READ_SIZE = 2**20  # number of bytes per read of the compressed file
MAX_EXPANSION = 200  # maximum ratio of decompressed size to file size; ratios of 3 to 20 are typical for text
UNCHECKED_BYTES = 2**26  # The ratio is not checked for files with a smaller decompressed size than this, in bytes.


def format_suffix(file: str | Path) -> str:
    """Return the suffix of the uncompressed format: ".jsonl" for a.jsonl, a.jsonl.gz and a.jsonl.zst."""
    path = Path(file)
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def open_decompressed(file: Path) -> BinaryIO:
    """Open a file as a binary stream. A compressed file is decompressed while the stream is read.

    Reading raises UserError if the compressed file is truncated or damaged, or if its decompressed size is
    implausible.
    """
    if file.suffix not in COMPRESSED:
        return file.open("rb")
    return io.BufferedReader(_Expanded(file), READ_SIZE)


class _Expanded(io.RawIOBase):
    def __init__(self, file: Path) -> None:
        self._path, self._read = file, 0
        self._max_bytes = max(UNCHECKED_BYTES, MAX_EXPANSION * file.stat().st_size)
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
            # If read() of this stream raises an exception, the stream's buffer is never freed.
            size: int = self._inner.readinto(buffer)
        except (OSError, EOFError, zlib.error) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"{self._path}: truncated or damaged after byte {self._read:,} of its content ({reason}); "
                "write the file again"
            ) from None
        self._read += size
        if self._read > self._max_bytes:
            raise UserError(
                f"{self._path}: expands to more than {self._max_bytes:,} bytes, {MAX_EXPANSION} times its "
                "size, which is not plausible for text; if the file is valid, decompress it first"
            )
        return size

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()
