"""Files of token ids: texts are tokenized once, and later runs read the ids from the file.

A file contains two consecutive .npy arrays: the offsets of all sequences, and their ids.
"""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from manyheads.data.readers.cache import cached
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.texts import Part, Texts
from manyheads.data.text.segments import Dtype, Encode, Ids, encoder
from manyheads.data.text.tokenizers import encode_all
from manyheads.errors import UserError

_FORMAT = "tokens-1"  # version of the format of `TokenStore` files; increase it when their layout changes
_CHUNK = 20_000  # number of texts that are encoded in one call of the tokenizer
_STREAM = "stream-2"  # version of the format of `TokenStream` files
_CHARACTERS = 2**21  # number of characters of running text that are encoded in one call of the tokenizer
_HEADER = 128  # size in bytes of the header of each .npy array


class _TokenFile:
    """File of token ids.

    The ids are read on demand. The file is not mapped into memory, because mapped pages count as memory of the process.
    """

    def __init__(self, path: Path) -> None:
        """Open a file of token ids. Raises UserError if it is incomplete or damaged."""
        self.path = path
        try:
            with path.open("rb") as file:
                count, offset_dtype = _read_header(file)
                offsets = np.frombuffer(file.read(count * offset_dtype.itemsize), offset_dtype).astype(np.int64)
                self.length, self.dtype = _read_header(file)
                self._start = file.tell()
        except (ValueError, EOFError) as error:
            raise UserError(f"{path}: not a token file ({error}); delete the file, and it will be rebuilt") from None
        self.lengths: NDArray[np.int64] = np.diff(offsets)
        size, expected = path.stat().st_size, self._start + self.length * self.dtype.itemsize
        complete = len(offsets) == count > 0 and offsets[0] == 0 and offsets[-1] == self.length
        if size != expected or not complete or (self.lengths < 0).any():
            raise UserError(
                f"{path}: expected {expected:,} bytes, found {size:,}; delete the file, and it will be rebuilt"
            )
        self._offsets = offsets
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def _read(self, start: int, stop: int) -> Ids:
        width = self.dtype.itemsize
        return np.frombuffer(os.pread(self._file, (stop - start) * width, self._start + start * width), self.dtype)


class TokenStore(_TokenFile, Sequence[NDArray[np.int64]]):
    """Sequences of token ids in a file.

    `store[i]` is the i-th sequence as int64; `lengths` (N,) contains their lengths.
    """

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int64]:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self):,} sequences")
        index %= len(self)
        return self._read(*self._offsets[index : index + 2].tolist()).astype(np.int64)

    def __repr__(self) -> str:
        return f"TokenStore({len(self):,} sequences, {self.length:,} {self.dtype} ids, {self.path})"

    @classmethod
    def of(
        cls, texts: Sequence[str] | ConcatenatedTexts, tokenizer: Tokenizer, cache: Path, *, identity: str | None = None
    ) -> TokenStore:
        """Open the file of token ids for `texts` in the directory `cache`.

        If the file is missing or damaged, the texts are tokenized and the file is written.

        identity  string that identifies the tokenizer, if it cannot be serialized as tokenizer.json
        """

        def write(path: Path) -> None:
            ends, remaining, row = np.zeros(len(texts) + 1, np.int64), iter(texts), 0
            dtype = _dtype_of(tokenizer)

            def chunks() -> Iterator[Ids]:
                nonlocal row
                while sequences := encode_all(tokenizer, list(islice(remaining, _CHUNK))):
                    after = row + len(sequences)
                    ends[row + 1 : after + 1] = ends[row] + np.cumsum([len(ids) for ids in sequences])
                    row = after
                    yield np.fromiter(chain.from_iterable(sequences), dtype)

            _write(path, chunks(), dtype, ends)
            assert row == len(texts)

        key = chain([_FORMAT, identity or tokenizer.to_str()], texts)
        return cached(cache, key, ".tokens", cls, write)


class TokenStream(_TokenFile):
    """Token ids of running text in a file, as one sequence.

    `stream[a:b]` reads only the ids from a to b, and returns them as an array.
    """

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: slice) -> Ids:
        start, stop, step = place.indices(self.length)
        assert step == 1
        return self._read(start, max(start, stop))

    @classmethod
    def of(cls, texts: Texts, tokenizer: Tokenizer, end: int | None, cache: Path) -> TokenStream:
        """Open the file of token ids for the running text `texts` in the directory `cache`.

        If the file is missing or damaged, it is written. Each piece of text is encoded separately, so the ids do not
        depend on the number of threads.

        end  token that is inserted before the first piece of each text; None: no token
        """
        key = [_STREAM, tokenizer.to_str(), str(tokenizer.encode_special_tokens), str(end), texts.facts.fingerprint]

        def write(path: Path) -> None:
            dtype = _dtype_of(tokenizer)
            begin = np.array([] if end is None else [end], dtype)
            _write(path, _encoded(texts, encoder(tokenizer, dtype), begin), dtype, np.zeros(2, np.int64))

        return cached(cache, key, ".tokens", cls, write)


def _dtype_of(tokenizer: Tokenizer) -> Dtype:
    # Take the largest id, not the vocabulary size: the ids of a vocabulary may have gaps.
    return np.dtype(np.uint16 if max(tokenizer.get_vocab().values(), default=0) < 2**16 else np.int32)


def _write(path: Path, chunks: Iterable[Ids], dtype: Dtype, ends: NDArray[np.int64]) -> None:
    """Write the token ids of N sequences to a file.

    chunks  iterable of arrays, which together contain the token ids of all sequences
    ends    (N + 1,) offset at which each sequence ends, preceded by 0. The generator `chunks` may fill this array while
            it yields ids; the last offset is set here
    """

    def head(length: int) -> bytes:
        return _header_bytes(ends.dtype, len(ends)) + ends.tobytes() + _header_bytes(dtype, length)

    with path.open("wb") as file:
        # The number of ids is not known yet. Write a preliminary header, which the final header of the same size
        # replaces at the end.
        start = file.write(head(0))
        for ids in chunks:
            file.write(ids.tobytes())
        ends[-1] = (file.tell() - start) // dtype.itemsize
        file.seek(0)
        file.write(head(int(ends[-1])))


def _encoded(texts: Texts, encode: Encode, begin: Ids) -> Iterator[Ids]:
    """Yield the token ids of running text. The next chunk of text is read while a thread tokenizes the current one.

    begin  token ids that are inserted before the first piece of each text
    """

    def ids(parts: list[Part]) -> Ids:
        encoded = encode([part.content for part in parts])
        return np.concatenate(
            [ids for part, of in zip(parts, encoded, strict=True) for ids in ([begin, of] if part.first else [of])]
        )

    with ThreadPoolExecutor(1) as thread:
        pending: Future[Ids] | None = None
        for chunk in _chunks(texts.parts()):
            submitted = thread.submit(ids, chunk)
            if pending is not None:
                yield pending.result()
            pending = submitted
        if pending is not None:
            yield pending.result()


def _chunks(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Group pieces of text, whose lengths may differ by a factor of a thousand, into chunks of similar size."""
    chunk, characters = list[Part](), 0
    for part in parts:
        chunk.append(part)
        characters += len(part.content)
        if characters >= _CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _read_header(file: BinaryIO) -> tuple[int, Dtype]:
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


def _header_bytes(dtype: Dtype, length: int) -> bytes:
    """Return an .npy header for a one-dimensional array. The header has the same size for every length of the array."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
    )
    assert len(content.getvalue()) == _HEADER
    return content.getvalue()
