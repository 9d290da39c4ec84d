"""Attention of one head over one sequence, for the fused inference kernels.

With few queries, keys and values are read directly from memory. With many queries, they are first packed like the
weights of two matrix products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from manyheads.inference.kernels import tile
from manyheads.inference.kernels.operations import (
    ONE,
    ZERO,
    exp_bounded,
    floats_at,
    kernel,
    multiply,
    order,
    rows_at_once,
)
from manyheads.inference.kernels.processor import AMX_STEPS, BF16, COLUMNS, FLOAT32, HAS_AMX, HAS_BF16, LANES
from manyheads.inference.kernels.tile import bits_of, float_of, pointer, to_bf16


@kernel
def exponentials(scores: Any, scale: Any) -> Any:
    """Compute the exponentials of one row of attention scores, times `scale`, in place.

    Returns the factor that makes their sum one (softmax).
    """
    # Compared as integers, because a loop over comparisons of floats, which treat NaN specially, is not vectorized.
    top = order(bits_of(scores[0]))
    for i in range(len(scores)):
        number = order(bits_of(scores[i]))
        top = number if number > top else top
    highest = float_of(order(top))
    total = ZERO
    for i in range(len(scores)):
        scores[i] = exp_bounded((scores[i] - highest) * scale)
        total += scores[i]
    return ONE / total


@kernel
def float_memory() -> Any:
    """Return the whole memory of the process as an array of float32.

    The index of a number is its address divided by 4.
    """
    return carray(pointer(0), (1 << 60,), np.float32)


@kernel
def bf16_memory() -> Any:
    """Return the whole memory of the process as an array of bf16. The index of a number is its address divided by 2."""
    return carray(pointer(0), (1 << 60,), np.uint16)


@kernel
def attend(
    kind: int, query: Any, count: int, left: int, width: int, keys: int, values: int, halves: bool, slots: Any,
    slot: int, head: int, step: int, total: int, causal: bool, scale: Any, out: Any, work: Any,
) -> None:  # fmt: skip
    """Compute attention of one head over one sequence: softmax(q k^T * scale) v for `count` queries.

    kind           precision of the model's products. If it is lower than float32, products of many queries use bf16
    query, out     arrays (count, ...). This head uses the columns `left` to `left + width`
    keys, values   addresses of float32 numbers, or of bf16 numbers if `halves`. The number at position s of head h has
                   an offset of slots[s] * slot + s * step + h * head numbers
    total          number of key positions. The last query sees all; if causal, each earlier query sees one less.
    work           scratch memory of this thread
    """
    if total == 0:
        for i in range(count):
            out[i, left : left + width] = ZERO
        return
    size, vectors = 2 if halves else 4, width // LANES if width % LANES == 0 else 0
    if count < 3 and (vectors == 1 or vectors == 2 or vectors == 4 or vectors == 8):  # tile.WIDTHS
        # With few queries, keys are read directly from memory.
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
    # With many queries, keys and values are packed like the weights of two matrix products.
    paired = HAS_BF16 and kind != FLOAT32 and width % 2 == 0
    # number of values of this precision that fit into 32 bits
    kind, per_word = BF16 if paired else FLOAT32, 2 if paired else 1
    height = rows_at_once(kind)
    across, down = (total + COLUMNS - 1) // COLUMNS, (width + COLUMNS - 1) // COLUMNS
    # AMX needs whole numbers of steps. Keys after the last are zero.
    round_to = AMX_STEPS if HAS_AMX and paired else 1
    deep, long = width // per_word, (total + per_word * round_to - 1) // (per_word * round_to) * round_to
    work, packed_keys = take(work, (across, deep, COLUMNS))
    work, packed_values = take(work, (down, long, COLUMNS))
    work, scores = take(work, (height, across * COLUMNS))
    work, left_side = take(work, (height, max(deep, across * COLUMNS)))
    work, mixed = take(work, (height, COLUMNS))
    work, rows = take(work, (2, width))
    work, factors = take(work, (height,))
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
                        line[d] |= np.int32(to_bf16(rows[1, first + d])) << np.int32(16)
                else:
                    for d in range(min(COLUMNS, width - first)):
                        line[d] = np.int32(to_bf16(rows[1, first + d]))
        else:
            for d in range(width):
                packed_keys[s // COLUMNS, d, s % COLUMNS] = rows[0, d]
            for g in range(down):
                first = g * COLUMNS
                for d in range(min(COLUMNS, width - first)):
                    packed_values[g, s, d] = rows[1, first + d]
    for g in range(down):
        packed_values[g, (total + per_word - 1) // per_word :] = ZERO
    tiles = (count + height - 1) // height
    for t in range(tiles):
        begin, end = t * count // tiles, (t + 1) * count // tiles
        max_keys = total - (count - end) if causal else total
        value_steps = (max_keys + per_word * round_to - 1) // (per_word * round_to) * round_to
        a, a_stride = query.ctypes.data + begin * query.strides[0] + 4 * left, query.strides[0]
        if paired:
            for i in range(begin, end):
                pair(query[i, left : left + width], words[i - begin])
            a, a_stride = left_side.ctypes.data, left_side.strides[0]
        for group in range((max_keys + COLUMNS - 1) // COLUMNS):
            w = packed_keys[group].ctypes.data
            multiply(kind, end - begin, a, a_stride, w, deep, scores.ctypes.data + 4 * COLUMNS * group,
                     scores.strides[0], w, 0)  # fmt: skip
        for i in range(begin, end):
            seen = total - (count - 1 - i) if causal else total
            factors[i - begin] = exponentials(scores[i - begin, :seen], scale)
            scores[i - begin, seen : value_steps * per_word] = ZERO
        a, a_stride = scores.ctypes.data, scores.strides[0]
        if paired:
            for i in range(end - begin):
                pair(scores[i, : value_steps * per_word], words[i])
            a, a_stride = left_side.ctypes.data, left_side.strides[0]
        for group in range(down):
            w = packed_values[group].ctypes.data
            multiply(kind, end - begin, a, a_stride, w, value_steps, mixed.ctypes.data, mixed.strides[0],
                     w, 0)  # fmt: skip
            columns_here = min(COLUMNS, width - group * COLUMNS)
            for i in range(begin, end):
                line = floats_at(out.ctypes.data + i * out.strides[0] + 4 * (left + group * COLUMNS), columns_here)
                for d in range(columns_here):
                    line[d] = mixed[i - begin, d] * factors[i - begin]


@kernel
def take(work: Any, shape: Any) -> Any:
    """Split off the first part of the scratch memory as an array; return the rest and the array."""
    size = 1
    for length in shape:
        size *= length
    return work[size:], carray(pointer(work.ctypes.data), shape, np.float32)


@kernel
def fetch(address: int, halves: bool, out: Any) -> None:
    """Convert a vector of float32 or bf16 numbers to a vector of float32 numbers."""
    if halves:
        shorts = carray(pointer(address), (len(out),), np.uint16)
        for d in range(len(out)):
            out[d] = float_of(np.int32(shorts[d]) << np.int32(16))
    else:
        whole = floats_at(address, len(out))
        for d in range(len(out)):
            out[d] = whole[d]


@kernel
def pair(x: Any, out: Any) -> None:
    """Convert an even number of float32 values to bf16, two per 32 bits."""
    halves = out.view(np.uint16)
    for i in range(len(x)):
        halves[i] = to_bf16(x[i])
