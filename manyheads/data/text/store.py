"""Token ids on disk: tokenised once, memory-mapped ever after.

One file holds the offsets and the ids of all sequences as two consecutive .npy arrays. Its name is a fingerprint of
everything the ids depend on, so a changed text, tokenizer or format is a different file and nothing can go stale.
"""

from __future__ import annotations

import io
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

_FORMAT = "tokens-1"  # change it with the layout below
_CHUNK = 20_000  # texts encoded at a time
_STREAM = "stream-1"
_CHARACTERS = 2**21  # of a stream that are encoded at a time
_HEADER = 128  # bytes


class TokenStore(Sequence[NDArray[np.int64]]):
    """Sequences of token ids in a file; `store[i]` is the i-th as int64, `lengths` (N,) holds their lengths."""

    def __init__(self, path: Path) -> None:
        """Opens a store. Raises UserError when the file is not whole."""
        self.path = path
        try:
            with path.open("rb") as file:
                count, wide = _stated(file)
                offsets = np.frombuffer(file.read(count * wide.itemsize), wide).astype(np.int64)
                length, dtype = _stated(file)
                start = file.tell()
        except (ValueError, EOFError) as error:
            raise UserError(f"{path}: not a token store ({error}); delete the file to have it built again") from None
        size, expected = path.stat().st_size, start + length * dtype.itemsize
        whole = len(offsets) == count > 0 and offsets[0] == 0 and offsets[-1] == length
        if size != expected or not whole or (np.diff(offsets) < 0).any():
            raise UserError(f"{path}: {size:,} bytes, expected {expected:,}; delete the file to have it built again")
        self._offsets, self._dtype, self._start, self._total = offsets, dtype, start, length
        self.lengths: NDArray[np.int64] = np.diff(offsets)
        self._file = os.open(path, os.O_RDONLY)  # read, not mapped: what was mapped counts as memory of the process
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int64]:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self):,}")
        index %= len(self)
        first, last = self._offsets[index : index + 2].tolist()
        width = self._dtype.itemsize
        content = os.pread(self._file, (last - first) * width, self._start + first * width)
        return np.frombuffer(content, self._dtype).astype(np.int64)

    def __repr__(self) -> str:
        return f"TokenStore({len(self):,} sequences, {self._total:,} {self._dtype} ids, {self.path})"

    @classmethod
    def of(
        cls, texts: Sequence[str] | ConcatenatedTexts, tokenizer: Tokenizer, cache: Path, *, identity: str | None = None
    ) -> TokenStore:
        """The store of `texts` in the directory `cache`: opened where it is there and whole, else tokenised anew.

        identity  what stands for a tokenizer that cannot be written as tokenizer.json.
        """
        path = cache / f"{fingerprint(chain([_FORMAT, identity or tokenizer.to_str()], texts))}.tokens"
        if (kept := _kept(cls, path)) is not None:
            return kept
        largest = max(tokenizer.get_vocab().values(), default=0)  # ids need not be without gaps
        dtype = np.dtype(np.uint16 if largest < 2**16 else np.int32)
        ends, waiting = np.zeros(len(texts) + 1, np.int64), iter(texts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(_header(ends.dtype, len(ends)) + ends.tobytes() + _header(dtype, 0))  # as large as they will be
            row = 0
            while sequences := encode_all(tokenizer, list(islice(waiting, _CHUNK))):
                after = row + len(sequences)
                ends[row + 1 : after + 1] = ends[row] + np.cumsum([len(ids) for ids in sequences])
                file.write(np.fromiter(chain.from_iterable(sequences), dtype).tobytes())
                row = after
            assert row == len(texts)
            file.seek(0)
            file.write(_header(ends.dtype, len(ends)) + ends.tobytes() + _header(dtype, int(ends[-1])))
        return cls(path)


def _kept(opened: Callable[[Path], T], path: Path) -> T | None:
    """What is there and whole; else None, and a warning where it is not whole."""
    if not path.exists():
        return None
    try:
        return opened(path)
    except ValueError as error:
        warnings.warn(f"{error} (it is rebuilt now)", stacklevel=3)
        return None


class TokenStream:
    """Ids of running text in a file, of which only what is asked for is read: stream[a:b] is an array."""

    def __init__(self, path: Path) -> None:
        """Opens a stream. Raises UserError where the file is not whole."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._length, self._dtype = _stated(file)
                self._start = file.tell()
        except (ValueError, EOFError) as error:
            raise UserError(f"{path}: not a token stream ({error}); delete the file to have it built again") from None
        size, expected = path.stat().st_size, self._start + self._length * self._dtype.itemsize
        if size != expected:
            raise UserError(f"{path}: {size:,} bytes, expected {expected:,}; delete the file to have it built again")
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: slice) -> NDArray[np.unsignedinteger | np.signedinteger]:
        start, stop, step = place.indices(self._length)
        assert step == 1
        width = self._dtype.itemsize
        content = os.pread(self._file, max(0, stop - start) * width, self._start + start * width)
        return np.frombuffer(content, self._dtype)

    @classmethod
    def of(cls, texts: Texts, tokenizer: Tokenizer, end: int | None, cache: Path) -> TokenStream:
        """The stream of `texts` in the directory `cache`: opened where it is there, else written, from where a process
        that was killed has left off. The ids are those of every piece of text by itself, so neither threads nor
        interruptions can change them.

        end  the token before the first piece of every text; None: there is none
        """
        settings = [
            _STREAM,
            tokenizer.to_str(),
            str(tokenizer.encode_special_tokens),
            str(end),
            texts.facts.fingerprint,
        ]
        path = cache / f"{fingerprint(settings)}.tokens"
        if (kept := _kept(cls, path)) is not None:
            return kept
        cache.mkdir(parents=True, exist_ok=True)
        try:
            _write_stream(path, texts, tokenizer, end)
        except OSError as error:
            raise WriteError(f"{path}: cannot write: {error.strerror or error}; make room and resume") from error
        return cls(path)


def _write_stream(path: Path, texts: Texts, tokenizer: Tokenizer, end: int | None) -> None:
    """Into a file beside `path`; a journal says how far that is right: (bytes of it, the first piece that is missing).

    One chunk is tokenised, by threads of the library, while the next one is read.
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

    header = _header(dtype, 0)
    size, after = _written(journal, partial) or (len(header), 0)
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
    with partial.open("r+b") as whole:
        whole.write(_header(dtype, (size - len(header)) // dtype.itemsize))
        whole.flush()
        os.fsync(whole.fileno())
    partial.replace(path)
    journal.unlink()


def _chunks(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Pieces that are tokenised together: some have a thousand times the characters of others."""
    chunk, characters = list[Part](), 0
    for part in parts:
        chunk.append(part)
        characters += len(part.content)
        if characters >= _CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _written(journal: Path, partial: Path) -> tuple[int, int] | None:
    """The last place in the journal that the file has reached. A torn line at its end is cut off."""
    if not journal.is_file() or not partial.is_file():
        return None
    content = journal.read_bytes()
    whole = content.rfind(b"\n") + 1
    os.truncate(journal, whole)  # or the next line would be written behind it
    places = [line.split() for line in content[:whole].decode().splitlines()]
    reached = partial.stat().st_size
    return next(((int(a), int(b)) for a, b in reversed(places) if int(a) <= reached), None)


def _stated(file: BinaryIO) -> tuple[int, np.dtype[Any]]:
    """Length and kind of an array of integers, from its .npy header. Raises UserError for any other, and where the
    file does not hold so many: nothing of that size is allocated then."""
    if (version := np.lib.format.read_magic(file)) != (1, 0):
        raise UserError(f"the version of its .npy format is {version}: expected (1, 0)")
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # its header is a literal of Python, and what reads these raises much
        raise UserError(f"a damaged .npy header ({type(error).__name__})") from None
    rest = os.fstat(file.fileno()).st_size - file.tell()
    if len(shape) != 1 or dtype.kind not in "iu" or not 0 <= shape[0] * dtype.itemsize <= rest:
        raise UserError(f"its header says {dtype} {shape}: expected integers, of at most {rest:,} bytes")
    return shape[0], dtype


def _header(dtype: np.dtype[Any], length: int) -> bytes:
    """Of an .npy file; of one size for any length."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    )
    assert len(content.getvalue()) == _HEADER
    return content.getvalue()
