"""Token ids on disk: tokenised once, memory-mapped ever after.

One file holds the offsets and the ids of all sequences as two consecutive .npy arrays. Its name is a fingerprint of
everything the ids depend on, so a changed text, tokenizer or format is a different file and nothing can go stale.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from manyheads.data.tokenizers import encode_all
from manyheads.files import fingerprint, replacing

_FORMAT = "tokens-1"  # change it with the layout below
_CHUNK = 100_000  # texts encoded at a time


class TokenStore(Sequence[NDArray[np.int64]]):
    """Sequences of token ids in a file; `store[i]` is the i-th as int64, `lengths` (N,) holds their lengths."""

    def __init__(self, path: Path) -> None:
        """Opens a store. Raises ValueError when the file is not whole."""
        self.path = path
        try:
            with path.open("rb") as file:
                offsets = np.load(file, allow_pickle=False)
                version = np.lib.format.read_magic(file)
                assert version == (1, 0)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                start = file.tell()
        except (ValueError, EOFError, AssertionError) as error:
            raise ValueError(f"{path}: not a token store ({error}); delete the file to have it built again") from None
        size, expected = path.stat().st_size, start + shape[0] * dtype.itemsize
        if size != expected or offsets[-1] != shape[0]:
            raise ValueError(f"{path}: {size:,} bytes, expected {expected:,}; delete the file to have it built again")
        self._offsets = offsets
        self._ids = np.memmap(path, dtype, "r", start, shape) if shape[0] else np.empty(0, dtype)
        self.lengths: NDArray[np.int64] = np.diff(offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[np.int64]:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self):,}")
        index %= len(self)
        return self._ids[self._offsets[index] : self._offsets[index + 1]].astype(np.int64)

    @property
    def stream(self) -> NDArray[np.unsignedinteger | np.signedinteger]:
        """All ids, one sequence behind the other, in the file."""
        return self._ids

    def __repr__(self) -> str:
        return f"TokenStore({len(self):,} sequences, {len(self._ids):,} {self._ids.dtype} ids, {self.path})"

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Tokenizer, cache: Path, *, identity: str | None = None) -> TokenStore:
        """The store of `texts` in the directory `cache`: opened where it is there and whole, else tokenised anew.

        identity  what stands for a tokenizer that cannot be written as tokenizer.json.
        """
        path = cache / f"{fingerprint([_FORMAT, identity or tokenizer.to_str(), *texts])}.tokens"
        if path.exists():
            try:
                return cls(path)
            except ValueError as error:
                warnings.warn(f"{error} (it is rebuilt now)", stacklevel=2)
        largest = max(tokenizer.get_vocab().values(), default=0)  # ids need not be without gaps
        dtype = np.uint16 if largest < 2**16 else np.int32
        chunks, lengths = [np.empty(0, dtype)], [0]
        for first in range(0, len(texts), _CHUNK):
            sequences = encode_all(tokenizer, texts[first : first + _CHUNK])
            lengths += map(len, sequences)
            chunks.append(np.fromiter((i for ids in sequences for i in ids), dtype))
        _write(path, np.cumsum(lengths, dtype=np.int64), np.concatenate(chunks))
        return cls(path)


def _write(path: Path, offsets: NDArray[np.int64], ids: NDArray[np.generic]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, offsets)
        np.save(file, ids)
