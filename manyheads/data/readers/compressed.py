"""Reader of compressed text files.

The files `a.jsonl.gz` and `a.jsonl.zst` can be read like `a.jsonl`; they are decompressed on the fly.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from manyheads.errors import UserError, extra

COMPRESSED = (".gz", ".zst")
READ_SIZE = 2**20  # number of bytes per read of the compressed file
MAX_EXPANSION = 200  # maximum ratio of decompressed size to file size; ratios of 3 to 20 are typical for text
# Byte order marks of the wide encodings. The marks of UTF-32 come first, because a mark of UTF-16 is a prefix of one.
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
          codecs.BOM_UTF16_BE: "UTF-16"}  # fmt: skip
_SAMPLE = 1024  # number of bytes at the start of a file from which UTF-16 and UTF-32 are detected
UNCHECKED_BYTES = 2**26  # `MAX_EXPANSION` does not apply to files with a smaller decompressed size, in bytes.


def format_suffix(file: str | Path) -> str:
    """Return the suffix of the uncompressed format in lower case: ".jsonl" for a.JSONL, a.jsonl.gz and a.jsonl.zst."""
    path = Path(str(file).lower())
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def open_decompressed(file: Path) -> BinaryIO:
    """Open a file as a binary stream. A compressed file is decompressed while the stream is read.

    Raises UserError for text in UTF-16 or UTF-32. Reading raises UserError if the compressed file is truncated or
    damaged, or if its decompressed size is implausible.
    """
    stream = file.open("rb") if file.suffix.lower() not in COMPRESSED else io.BufferedReader(_Expanded(file), READ_SIZE)
    try:
        encoding = _wide_encoding(stream.peek(_SAMPLE)[:_SAMPLE])
        if encoding is not None:
            raise UserError(f"{file}: the text is {encoding}; convert it with `iconv -f {encoding} -t UTF-8`")
    except BaseException:
        stream.close()
        raise
    return stream


def _wide_encoding(start: bytes) -> str | None:
    """Return the encoding of a text in UTF-16 or UTF-32, given its first bytes; None for another encoding.

    A byte order mark shows the encoding. Without one, a text in which about every second byte is NUL is UTF-16.
    """
    if mark := next((mark for mark in _MARKS if start.startswith(mark)), None):
        return _MARKS[mark]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if max(even, odd) < max(2, len(start) // 4) or min(even, odd):
        return None
    return "UTF-16BE" if even else "UTF-16LE"


class _Expanded(io.RawIOBase):
    def __init__(self, file: Path) -> None:
        self._path, self._read = file, 0
        self._max_bytes = max(UNCHECKED_BYTES, MAX_EXPANSION * file.stat().st_size)
        self._inner: Any
        if file.suffix.lower() == ".gz":
            self._inner = gzip.GzipFile(file)
        else:
            with extra("parquet", "a .zst file"):
                import pyarrow

            self._inner = pyarrow.input_stream(str(file), compression="zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            # Not read(): if it raised an exception, the memory of its buffer would never be freed.
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
