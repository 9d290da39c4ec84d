"""Order of the blocks on which a language model is trained. A block is a part of a long sequence of token ids.

All blocks have equal length, so there is no padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from manyheads.data.text.segments import Ids
from manyheads.data.text.store import TokenStream
from manyheads.errors import UserError

Stream = Ids | TokenStream
# If an epoch has at most this number of blocks, their order is stored in memory as a permutation. For more blocks, it
# is computed on demand (`PseudoRandomOrder`).
MAX_LISTED = 2**22


def block_starts(
    tokens: int, block: int, *, seed: int, epoch: int, random: bool
) -> NDArray[np.int64] | PseudoRandomOrder:
    """Return the start offsets of all blocks of one epoch in a token stream.

    The offsets depend only on the seed and the epoch. The block at offset `start` has the input tokens
    [start, start + block) and the target tokens [start + 1, start + block + 1).

    tokens  length of the token stream
    block   number of tokens in a block
    random  if True, draw the start offsets uniformly with replacement; their number is the number of disjoint blocks
            in the stream. If False, return adjacent blocks in random order, with a random first offset in each epoch.
            Each token is then a target once, except for less than one block at each end of the stream

    Raises UserError if the stream is shorter than one block.
    """
    if tokens <= block:
        raise UserError(
            f"the text has {tokens:,} tokens, but a block requires {block + 1:,}; give more text or a smaller block"
        )
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch])))
    last = tokens - block - 1  # last possible start offset of a block
    count = (tokens - 1) // block
    if random:
        return rng.integers(last + 1, size=count) if count <= MAX_LISTED else PseudoRandomOrder(count, last + 1, rng)
    first = int(rng.integers(min(block, last + 1)))
    count = (last - first) // block + 1
    if count <= MAX_LISTED:
        return rng.permutation(np.arange(first, last + 1, block))
    return PseudoRandomOrder(count, count, rng, first, block)


class PseudoRandomOrder:
    """Pseudo-random sequence of `count` values of the form first + step * k with an integer k < `limit`.

    Only the values of a requested slice are computed. If count == limit, the values k are a permutation of the range,
    computed by a Feistel network (Luby and Rackoff 1988) that permutes the two halves of a number's bits; it is applied
    again to a result outside of the range. Otherwise each k is drawn independently.
    """

    _ROUNDS = 4

    def __init__(self, count: int, limit: int, rng: np.random.Generator, first: int = 0, step: int = 1) -> None:
        self._count, self._limit, self._first, self._step = count, limit, first, step
        self._keys = rng.integers(2**64, size=self._ROUNDS, dtype=np.uint64)
        self._half_bits = np.uint64((max(limit - 1, 1).bit_length() + 1) // 2)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, span: slice) -> NDArray[np.int64]:
        k = np.arange(*span.indices(self._count), dtype=np.uint64)
        if self._count == self._limit:
            k = self._permute(k)
            while (outside := k >= self._limit).any():
                k[outside] = self._permute(k[outside])
        else:
            k = _hash64(k, self._keys[0]) % np.uint64(self._limit)
        return self._first + self._step * k.astype(np.int64)

    def _permute(self, k: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low = np.uint64(2 ** int(self._half_bits) - 1)
        left, right = k >> self._half_bits, k & low
        for key in self._keys:
            left, right = right, left ^ (_hash64(right, key) & low)
        return (left << self._half_bits) | right


def _hash64(k: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return a 64-bit pseudo-random number for each number in `k` (algorithm SplitMix64: Steele et al. 2014)."""
    k = (k + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key
    k = (k ^ (k >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    k = (k ^ (k >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return k ^ (k >> np.uint64(31))


class Groups(Sequence[NDArray[np.int64]]):
    """Sequence of batches. Each batch is an array with the start offsets of `rows` blocks; the last may be smaller."""

    def __init__(self, starts: NDArray[np.int64] | PseudoRandomOrder, rows: int) -> None:
        self._starts, self._rows = starts, rows

    def __len__(self) -> int:
        return -(-len(self._starts) // self._rows)

    def __getitem__(self, index: int) -> NDArray[np.int64]:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        start = index % len(self) * self._rows
        return self._starts[start : start + self._rows]
