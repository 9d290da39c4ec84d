"""Attention of one head over one sequence, for the fused functions: few queries look at keys where these stand, many
at keys and values that are laid out as the weights of two products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from manyheads.inference import tile
from manyheads.inference.kernels import ONE, ZERO, exp_up, kernel, multiply, part
from manyheads.inference.tile import BF16, COLUMNS, FLOAT32, HAS_BF16, LANES, ROWS, float_of, pointer, rounded


@kernel
def exponentials(scores: Any, scale: Any) -> Any:
    """Softmax of one row, times `scale`, in place, but for the factor that makes them sum to one: it is returned."""
    highest = scores[0]
    for i in range(len(scores)):
        highest = scores[i] if scores[i] > highest else highest
    total = ZERO
    for i in range(len(scores)):
        scores[i] = exp_up((scores[i] - highest) * scale)
        total += scores[i]
    return ONE / total


@kernel
def numbers() -> Any:
    """All memory as one array of float32: what is at an address stands at a quarter of it."""
    return carray(pointer(0), (1 << 60,), np.float32)


@kernel
def short_numbers() -> Any:
    """The same as bf16, two to a float32."""
    return carray(pointer(0), (1 << 60,), np.uint16)


@kernel
def attend(
    kind: int, query: Any, count: int, left: int, width: int, keys: int, values: int, halves: bool, slots: Any,
    slot: int, head: int, step: int, total: int, causal: bool, scale: Any, out: Any, work: Any,
) -> None:  # fmt: skip
    """One head of one sequence: softmax(q k^T * scale) v for `count` queries.

    kind           of the model's products: where they are in less than float32, so are those of many queries, in bf16
    query, out     (count, ...), in which columns from `left` on, `width` of them, are this head's
    keys, values   addresses of float32, or bf16 where `halves`: position s stands slots[s] * slot + s * step numbers
                   further on, and the next head's `head` numbers
    total          positions of keys; of them the last query sees all, and where causal, the one before one less
    work           memory of this thread
    """
    if total == 0:
        for i in range(count):
            out[i, left : left + width] = ZERO
        return
    size, vectors = 2 if halves else 4, width // LANES if width % LANES == 0 else 0
    if count < 3 and (vectors == 1 or vectors == 2 or vectors == 4 or vectors == 8):  # tile.WIDTHS
        # few queries: every key is read where it stands
        at, slot_step = slots.ctypes.data, 8 if slot else 0
        for i in range(count):
            seen = total - (count - 1 - i) if causal else total
            q, o, scores = query[i, left:].ctypes.data, out[i, left:].ctypes.data, work[:seen]
            tile.scores(vectors, halves, q, keys, at, slot_step, size * slot, size * step, seen, scores.ctypes.data,
                        values - keys)  # fmt: skip
            factor = exponentials(scores, scale)
            tile.mix(vectors, halves, scores.ctypes.data, values, at, slot_step, size * slot, size * step, seen, o,
                     keys + size * head - values)  # fmt: skip
            for d in range(left, left + width):
                out[i, d] *= factor
        return
    # many: keys and values are laid out as the weights of two products
    paired = HAS_BF16 and kind != FLOAT32 and width % 2 == 0
    kind, together = BF16 if paired else FLOAT32, 2 if paired else 1  # numbers in 32 bits
    across, down = (total + COLUMNS - 1) // COLUMNS, (width + COLUMNS - 1) // COLUMNS
    deep, long = width // together, (total + together - 1) // together
    work, packed_keys = taken(work, (across, deep, COLUMNS))
    work, packed_values = taken(work, (down, long, COLUMNS))
    work, scores = taken(work, (ROWS, across * COLUMNS))
    work, left_side = taken(work, (ROWS, max(deep, across * COLUMNS)))
    work, mixed = taken(work, (ROWS, COLUMNS))
    work, rows = taken(work, (2, width))
    work, factors = taken(work, (ROWS,))
    words, key_words, value_words = left_side.view(np.int32), packed_keys.view(np.int32), packed_values.view(np.int32)
    for s in range(total):
        shift = size * ((slots[s] * slot if slot else 0) + s * step)
        fetch(keys + shift, halves, rows[0])
        fetch(values + shift, halves, rows[1])
        if paired:
            pair(rows[0], words[0])
            for d in range(deep):
                key_words[s // COLUMNS, d, s % COLUMNS] = words[0, d]
            for g in range(down):
                first = g * COLUMNS
                line = value_words[g, s // 2]
                if s % 2:
                    for d in range(min(COLUMNS, width - first)):
                        line[d] |= np.int32(rounded(rows[1, first + d])) << np.int32(16)
                else:
                    for d in range(min(COLUMNS, width - first)):
                        line[d] = np.int32(rounded(rows[1, first + d]))
        else:
            for d in range(width):
                packed_keys[s // COLUMNS, d, s % COLUMNS] = rows[0, d]
            for g in range(down):
                first = g * COLUMNS
                for d in range(min(COLUMNS, width - first)):
                    packed_values[g, s, d] = rows[1, first + d]
    tiles = (count + ROWS - 1) // ROWS
    for t in range(tiles):
        begin, end = t * count // tiles, (t + 1) * count // tiles
        most = total - (count - end) if causal else total
        a, a_stride = query.ctypes.data + begin * query.strides[0] + 4 * left, query.strides[0]
        if paired:
            for i in range(begin, end):
                pair(query[i, left : left + width], words[i - begin])
            a, a_stride = left_side.ctypes.data, left_side.strides[0]
        for group in range((most + COLUMNS - 1) // COLUMNS):
            w = packed_keys[group].ctypes.data
            multiply(kind, end - begin, a, a_stride, w, deep, scores.ctypes.data + 4 * COLUMNS * group,
                     scores.strides[0], w, 0)  # fmt: skip
        for i in range(begin, end):
            seen = total - (count - 1 - i) if causal else total
            factors[i - begin] = exponentials(scores[i - begin, :seen], scale)
            scores[i - begin, seen : most + most % together] = ZERO
        a, a_stride = scores.ctypes.data, scores.strides[0]
        if paired:
            for i in range(end - begin):
                pair(scores[i, : most + most % 2], words[i])
            a, a_stride = left_side.ctypes.data, left_side.strides[0]
        for group in range(down):
            w = packed_values[group].ctypes.data
            multiply(kind, end - begin, a, a_stride, w, (most + together - 1) // together, mixed.ctypes.data,
                     mixed.strides[0], w, 0)  # fmt: skip
            some = min(COLUMNS, width - group * COLUMNS)
            for i in range(begin, end):
                line = part(out.ctypes.data + i * out.strides[0] + 4 * (left + group * COLUMNS), some)
                for d in range(some):
                    line[d] = mixed[i - begin, d] * factors[i - begin]


@kernel
def taken(work: Any, shape: Any) -> Any:
    """What is left of the memory, and its beginning as an array."""
    size = 1
    for length in shape:
        size *= length
    return work[size:], work[:size].reshape(shape)


@kernel
def fetch(address: int, halves: bool, out: Any) -> None:
    """A vector of float32 or bf16 numbers as float32."""
    if halves:
        shorts = carray(pointer(address), (len(out),), np.uint16)
        for d in range(len(out)):
            out[d] = float_of(np.int32(shorts[d]) << np.int32(16))
    else:
        whole = part(address, len(out))
        for d in range(len(out)):
            out[d] = whole[d]


@kernel
def pair(x: Any, out: Any) -> None:
    """Float32 numbers, an even count of them, as bf16, two in 32 bits."""
    halves = out.view(np.uint16)
    for i in range(len(x)):
        halves[i] = rounded(x[i])


def work_size(total: int, width: int) -> int:
    """Float32 numbers that `attend` needs for so many keys."""
    across, down = -(-total // COLUMNS), -(-width // COLUMNS)
    columns = across * width + down * total + ROWS * (across + max(across, down) + 1)
    return columns * COLUMNS + 2 * width + ROWS
