"""Files of token ids: texts are tokenized once, and later runs read the ids from the file.

A file contains two consecutive .npy arrays: the offsets of all sequences, and their ids. The name of the file is a
fingerprint of all inputs: text, tokenizer and file format. A changed input therefore gives a file with another name,
and a file never becomes stale.
"""

from __future__ import annotations

import io
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.texts import Part, Texts
from manyheads.data.text.stretches import encoder
from manyheads.data.text.tokenizers import encode_all
from manyheads.errors import UserError
from manyheads.files import WriteError, fingerprint, replacing

T = TypeVar("T")

_FORMAT = "tokens-1"  # Version of the file format. Increase it when the layout of a file changes.
_CHUNK = 20_000  # number of texts that are encoded in one call of the tokenizer
_STREAM = "stream-1"
_CHARACTERS = 2**21  # number of characters of running text that are encoded in one call of the tokenizer
_HEADER = 128  # size in bytes of the header of each .npy array


class _Ids:
    """Array of token ids at the end of a file.

    The ids are read, not memory-mapped, because memory-mapped pages count as memory of the process.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.length, self.dtype = _read_header(file)
        self._path, self._start = path, file.tell()
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def check(self, valid: bool = True) -> None:
        """Raise UserError if the size of the file is wrong, or if the rest of the file is not valid."""
        size, expected = self._path.stat().st_size, self._start + self.length * self.dtype.itemsize
        if size != expected or not valid:
            raise UserError(
                f"{self._path}: expected {expected:,} bytes, found {size:,}; delete the file, and it will be rebuilt"
            )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        width = self.dtype.itemsize
        return np.frombuffer(os.pread(self._file, (stop - start) * width, self._start + start * width), self.dtype)


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: not a token {kind} ({error}); delete the file, and it will be rebuilt") from None


class TokenStore(Sequence[NDArray[np.int64]]):
    """Sequences of token ids in a file.

    `store[i]` is the i-th sequence as int64; `lengths` (N,) contains their lengths.
    """

    def __init__(self, path: Path) -> None:
        """Open a file of token ids. Raises UserError if it is incomplete or damaged."""
        self.path = path
        with _reading(path, "store") as file:
            count, offset_dtype = _read_header(file)
            offsets = np.frombuffer(file.read(count * offset_dtype.itemsize), offset_dtype).astype(np.int64)
            self._ids = _Ids(path, file)
        self.lengths: NDArray[np.int64] = np.diff(offsets)
        complete = len(offsets) == count > 0 and offsets[0] == 0 and offsets[-1] == self._ids.length
        self._ids.check(complete and not (self.lengths < 0).any())
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int64]:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self):,} sequences")
        index %= len(self)
        return self._ids.read(*self._offsets[index : index + 2].tolist()).astype(np.int64)

    def __repr__(self) -> str:
        return f"TokenStore({len(self):,} sequences, {self._ids.length:,} {self._ids.dtype} ids, {self.path})"

    @classmethod
    def of(
        cls, texts: Sequence[str] | ConcatenatedTexts, tokenizer: Tokenizer, cache: Path, *, identity: str | None = None
    ) -> TokenStore:
        """Open the file of token ids for `texts` in the directory `cache`.

        If the file is missing or damaged, the texts are tokenized and the file is written.

        identity  string that identifies the tokenizer, if it cannot be serialized as tokenizer.json
        """
        path = cache / f"{fingerprint(chain([_FORMAT, identity or tokenizer.to_str()], texts))}.tokens"
        if (kept := _open_existing(cls, path)) is not None:
            return kept
        # The largest id may exceed the vocabulary size, because ids may have gaps.
        largest = max(tokenizer.get_vocab().values(), default=0)
        dtype = np.dtype(np.uint16 if largest < 2**16 else np.int32)
        ends, remaining = np.zeros(len(texts) + 1, np.int64), iter(texts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            # This preliminary header has the same size as the final header, which replaces it at the end.
            file.write(_header_bytes(ends.dtype, len(ends)) + ends.tobytes() + _header_bytes(dtype, 0))
            row = 0
            while sequences := encode_all(tokenizer, list(islice(remaining, _CHUNK))):
                after = row + len(sequences)
                ends[row + 1 : after + 1] = ends[row] + np.cumsum([len(ids) for ids in sequences])
                file.write(np.fromiter(chain.from_iterable(sequences), dtype).tobytes())
                row = after
            assert row == len(texts)
            file.seek(0)
            file.write(_header_bytes(ends.dtype, len(ends)) + ends.tobytes() + _header_bytes(dtype, int(ends[-1])))
        return cls(path)


def _open_existing(open_file: Callable[[Path], T], path: Path) -> T | None:
    """Open an existing file. Return None if it does not exist. If it is damaged, log a warning and return None."""
    if not path.exists():
        return None
    try:
        return open_file(path)
    except ValueError as error:
        warnings.warn(f"{error} (rebuilding it now)", stacklevel=3)
        return None


class TokenStream:
    """Token ids of running text in a file.

    `stream[a:b]` reads only the ids from a to b, and returns them as an array.
    """

    def __init__(self, path: Path) -> None:
        """Open a file of running token ids. Raises UserError if it is incomplete or damaged."""
        self.path = path
        with _reading(path, "stream") as file:
            self._ids = _Ids(path, file)
        self._ids.check()

    def __len__(self) -> int:
        return self._ids.length

    def __getitem__(self, place: slice) -> NDArray[np.unsignedinteger | np.signedinteger]:
        start, stop, step = place.indices(self._ids.length)
        assert step == 1
        return self._ids.read(start, max(start, stop))

    @classmethod
    def of(cls, texts: Texts, tokenizer: Tokenizer, end: int | None, cache: Path) -> TokenStream:
        """Open the file of token ids for the running text `texts` in the directory `cache`.

        If the file is missing, it is written. If an earlier process was interrupted while it wrote the file, writing
        resumes after the last complete chunk. Each piece of text is encoded separately, so the ids depend neither on
        the number of threads nor on interruptions.

        end  token that is inserted before the first piece of each text; None: no token
        """
        settings = [
            _STREAM,
            tokenizer.to_str(),
            str(tokenizer.encode_special_tokens),
            str(end),
            texts.facts.fingerprint,
        ]
        path = cache / f"{fingerprint(settings)}.tokens"
        if (kept := _open_existing(cls, path)) is not None:
            return kept
        cache.mkdir(parents=True, exist_ok=True)
        try:
            _write_stream(path, texts, tokenizer, end)
        except OSError as error:
            raise WriteError(
                f"{path}: failed to write: {error.strerror or error}; free disk space and resume"
            ) from error
        return cls(path)


def _write_stream(path: Path, texts: Texts, tokenizer: Tokenizer, end: int | None) -> None:
    """Write the token ids of running text to a partial file next to `path`, and its progress to a journal file.

    Each line of the journal contains the valid size of the partial file in bytes, and the index of the next piece
    of text. While one thread tokenizes a chunk, the next chunk is read.
    """
    largest = max(tokenizer.get_vocab().values(), default=0)
    dtype = np.dtype(np.uint16 if largest < 2**16 else np.int32)
    partial, journal = path.with_suffix(".partial"), path.with_suffix(".journal")
    encode, begin = encoder(tokenizer, dtype), np.array([] if end is None else [end], dtype)

    def ids(parts: list[Part]) -> NDArray[Any]:
        arrays = list[NDArray[Any]]()
        for part, encoded in zip(parts, encode([part.content for part in parts]), strict=True):
            arrays += [begin, encoded] if part.first else [encoded]
        return np.concatenate(arrays)

    header = _header_bytes(dtype, 0)
    size, after = _journal_position(journal, partial) or (len(header), 0)
    with partial.open("ab") as file, journal.open("a") as log, ThreadPoolExecutor(1) as thread:
        file.truncate(size)
        if size == len(header):
            file.truncate(0)
            file.write(header)
        pending: tuple[Future[NDArray[Any]], int] | None = None
        for chunk in chain(_chunks(texts.parts(after)), [None]):
            submitted = None if chunk is None else (thread.submit(ids, chunk), chunk[-1].number + 1)
            if pending is not None:
                size += file.write(pending[0].result().tobytes())
                file.flush()
                os.fsync(file.fileno())
                log.write(f"{size} {pending[1]}\n")
                log.flush()
            pending = submitted
    with partial.open("r+b") as complete:
        complete.write(_header_bytes(dtype, (size - len(header)) // dtype.itemsize))
        complete.flush()
        os.fsync(complete.fileno())
    partial.replace(path)
    journal.unlink()


def _chunks(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Group pieces of text into chunks of similar size.

    The lengths of pieces may differ by a factor of a thousand.
    """
    chunk, characters = list[Part](), 0
    for part in parts:
        chunk.append(part)
        characters += len(part.content)
        if characters >= _CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _journal_position(journal: Path, partial: Path) -> tuple[int, int] | None:
    """Return the last journal entry whose token ids are completely in the partial file.

    Remove an incomplete last line of the journal.
    """
    if not journal.is_file() or not partial.is_file():
        return None
    content = journal.read_bytes()
    complete = content.rfind(b"\n") + 1
    os.truncate(journal, complete)  # Remove the incomplete line; otherwise the next entry would be appended to it.
    places = [line.split() for line in content[:complete].decode().splitlines()]
    partial_size = partial.stat().st_size
    return next(((int(a), int(b)) for a, b in reversed(places) if int(a) <= partial_size), None)


def _read_header(file: BinaryIO) -> tuple[int, np.dtype[Any]]:
    """Read the .npy header of an integer array, and return the length and the dtype of the array.

    Raises UserError for other arrays, and if the file is too short for the array. No memory is allocated for the
    array.
    """
    if (version := np.lib.format.read_magic(file)) != (1, 0):
        raise UserError(f"expected .npy format version (1, 0), found {version}")
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # The header is a Python literal; to parse it may raise various exceptions.
        raise UserError(f"damaged .npy header ({type(error).__name__})") from None
    rest = os.fstat(file.fileno()).st_size - file.tell()
    if len(shape) != 1 or dtype.kind not in "iu" or not 0 <= shape[0] * dtype.itemsize <= rest:
        raise UserError(f"expected an integer array of at most {rest:,} bytes, found {dtype} {shape} in the header")
    return shape[0], dtype


def _header_bytes(dtype: np.dtype[Any], length: int) -> bytes:
    """Return an .npy header for a one-dimensional array. The header has the same size for every length of the array."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    )
    assert len(content.getvalue()) == _HEADER
    return content.getvalue()
