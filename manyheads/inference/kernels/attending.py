"""Attention of one head over one sequence, for the fused inference kernels.

With few queries, keys and values are read directly from memory. With many queries, they are first packed like the
weights of two matrix products.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from manyheads.inference.kernels import tile
from manyheads.inference.kernels.arguments import Array, HeadView, Packed
from manyheads.inference.kernels.operations import (
    ONE,
    ZERO,
    exp_bounded,
    floats_at,
    kernel,
    multiply,
    order,
    part,
    rows_at_once,
)
from manyheads.inference.kernels.processor import AMX_STEPS, BF16, COLUMNS, FLOAT32, HAS_AMX, HAS_BF16, LANES
from manyheads.inference.kernels.tile import bits_of, float_of, pointer, to_bf16


@kernel
def exponentials(scores: Array, scale: float) -> np.float32:
    """Replace one row of attention scores by the exponentials of scale * score.

    Returns the factor by which the exponentials must be multiplied so that their sum is one (softmax).
    """
    # Compare the scores as integers. A loop that compares floats is not vectorized, because NaN is a special case.
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
def float_memory() -> Array:
    """Return the whole memory of the process as a float32 array. The index of a number is its address divided by 4."""
    return carray(pointer(0), (1 << 60,), np.float32)


@kernel
def bf16_memory() -> Array:
    """Return the whole memory of the process as a bf16 array. The index of a number is its address divided by 2."""
    return carray(pointer(0), (1 << 60,), np.uint16)


@kernel
def attend(kind: int, view: HeadView, work: Array) -> None:
    """Compute attention of one head over one sequence: softmax(q k^T * scale) v.

    kind  precision of the model's matrix products. If it is lower than float32, many queries are computed in bf16
    work  scratch memory of this thread
    """
    count, left, width = view.query.shape[0], view.left, view.width
    if view.total == 0:
        for i in range(count):
            view.out[i, left : left + width] = ZERO
        return
    vectors = width // LANES if width % LANES == 0 else 0
    if count < 3 and (vectors == 1 or vectors == 2 or vectors == 4 or vectors == 8):  # tile.WIDTHS
        attend_directly(view, vectors, work)
    else:
        attend_by_products(kind, view, work)


@part
def attend_directly(view: HeadView, vectors: int, work: Array) -> None:
    """Compute attention of a few queries, with keys and values read directly from memory.

    vectors  number of vector registers that the width of a head fills
    """
    query, out, left, total = view.query, view.out, view.left, view.total
    count, size = query.shape[0], 2 if view.halves else 4
    at, slot_step, slot, step = view.slots.ctypes.data, 8 if view.slot else 0, size * view.slot, size * view.step
    for i in range(count):
        seen = total - (count - 1 - i) if view.causal else total
        q, o, scores = query[i, left:].ctypes.data, out[i, left:].ctypes.data, work[:seen]
        tile.scores(vectors, view.halves, q, view.keys, at, slot_step, slot, step, seen, scores.ctypes.data,
                    view.values - view.keys)  # fmt: skip
        factor = exponentials(scores, view.scale)
        tile.mix(vectors, view.halves, scores.ctypes.data, view.values, at, slot_step, slot, step, seen, o,
                 view.keys + size * view.head - view.values)  # fmt: skip
        for d in range(left, left + view.width):
            out[i, d] *= factor


@part
def attend_by_products(kind: int, view: HeadView, work: Array) -> None:
    """Compute attention of many queries, with keys and values packed like the weights of two matrix products."""
    count, total, width = view.query.shape[0], view.total, view.width
    paired = HAS_BF16 and kind != FLOAT32 and width % 2 == 0
    # number of values of this precision that fit into 32 bits
    kind, per_word = BF16 if paired else FLOAT32, 2 if paired else 1
    height = rows_at_once(kind)
    across, down = (total + COLUMNS - 1) // COLUMNS, (width + COLUMNS - 1) // COLUMNS
    # AMX computes AMX_STEPS steps at once, so the number of keys is rounded up. The additional keys are zero.
    unit = per_word * (AMX_STEPS if HAS_AMX and paired else 1)
    deep, long = width // per_word, (total + unit - 1) // unit * unit // per_word
    work, keys = take(work, (across, deep, COLUMNS))
    work, values = take(work, (down, long, COLUMNS))
    work, scores = take(work, (height, across * COLUMNS))
    work, left_side = take(work, (height, max(deep, across * COLUMNS)))
    work, mixed = take(work, (height, COLUMNS))
    work, rows = take(work, (2, width))
    work, factors = take(work, (height,))
    packed = Packed(kind, keys, values, scores, left_side, mixed, factors, unit, per_word)
    if paired:
        pack_pairs(view, packed, rows)
    else:
        pack_floats(view, packed, rows)
    tiles = (count + height - 1) // height
    for t in range(tiles):
        attend_tile(view, packed, t * count // tiles, (t + 1) * count // tiles)


@part
def pack_pairs(view: HeadView, packed: Packed, rows: Array) -> None:
    """Pack keys and values in bf16. Each 32-bit word contains two numbers that the product multiplies and adds."""
    width, words = view.width, packed.left_side.view(np.int32)
    keys, values = packed.keys.view(np.int32), packed.values.view(np.int32)
    for s in range(view.total):
        fetch(view, s, rows)
        pair(rows[0], words[0])
        for d in range(keys.shape[1]):
            keys[s // COLUMNS, d, s % COLUMNS] = words[0, d]
        for g in range(len(values)):
            first = g * COLUMNS
            line = values[g, s // 2]
            if s % 2:
                for d in range(min(COLUMNS, width - first)):
                    line[d] |= np.int32(to_bf16(rows[1, first + d])) << np.int32(16)
            else:
                for d in range(min(COLUMNS, width - first)):
                    line[d] = np.int32(to_bf16(rows[1, first + d]))
    for g in range(len(values)):
        packed.values[g, (view.total + 1) // 2 :] = ZERO


@part
def pack_floats(view: HeadView, packed: Packed, rows: Array) -> None:
    """Pack keys and values in float32."""
    for s in range(view.total):
        fetch(view, s, rows)
        for d in range(view.width):
            packed.keys[s // COLUMNS, d, s % COLUMNS] = rows[0, d]
        for g in range(len(packed.values)):
            first = g * COLUMNS
            for d in range(min(COLUMNS, view.width - first)):
                packed.values[g, s, d] = rows[1, first + d]


@part
def attend_tile(view: HeadView, packed: Packed, begin: int, end: int) -> None:
    """Compute attention of the queries from `begin` to `end`, which fit into one matrix product."""
    query, out, left, width, total = view.query, view.out, view.left, view.width, view.total
    kind, scores, words = packed.kind, packed.scores, packed.left_side.view(np.int32)
    count, paired = query.shape[0], packed.per_word == 2
    max_keys = total - (count - end) if view.causal else total
    padded_keys = (max_keys + packed.unit - 1) // packed.unit * packed.unit
    a, a_stride = query.ctypes.data + begin * query.strides[0] + 4 * left, query.strides[0]
    if paired:
        for i in range(begin, end):
            pair(query[i, left : left + width], words[i - begin])
        a, a_stride = words.ctypes.data, words.strides[0]
    for group in range((max_keys + COLUMNS - 1) // COLUMNS):
        w = packed.keys[group].ctypes.data
        multiply(kind, end - begin, a, a_stride, w, packed.keys.shape[1], scores.ctypes.data + 4 * COLUMNS * group,
                 scores.strides[0], w, 0)  # fmt: skip
    for i in range(begin, end):
        seen = total - (count - 1 - i) if view.causal else total
        packed.factors[i - begin] = exponentials(scores[i - begin, :seen], view.scale)
        scores[i - begin, seen:padded_keys] = ZERO
    a, a_stride = scores.ctypes.data, scores.strides[0]
    if paired:
        for i in range(end - begin):
            pair(scores[i, :padded_keys], words[i])
        a, a_stride = words.ctypes.data, words.strides[0]
    for group in range(len(packed.values)):
        w = packed.values[group].ctypes.data
        multiply(kind, end - begin, a, a_stride, w, padded_keys // packed.per_word, packed.mixed.ctypes.data,
                 packed.mixed.strides[0], w, 0)  # fmt: skip
        columns = min(COLUMNS, width - group * COLUMNS)
        for i in range(begin, end):
            line = floats_at(out.ctypes.data + i * out.strides[0] + 4 * (left + group * COLUMNS), columns)
            for d in range(columns):
                line[d] = packed.mixed[i - begin, d] * packed.factors[i - begin]


@kernel
def take(work: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Split off the first part of the scratch memory as an array; return the rest and the array."""
    size = 1
    for length in shape:
        size *= length
    return work[size:], carray(pointer(work.ctypes.data), shape, np.float32)


@part
def fetch(view: HeadView, position: int, rows: Array) -> None:
    """Write the key and the value at a position to two rows of float32 numbers, (2, width)."""
    at = (view.slots[position] * view.slot if view.slot else 0) + position * view.step
    shift = at * (2 if view.halves else 4)
    copy(view.keys + shift, view.halves, rows[0])
    copy(view.values + shift, view.halves, rows[1])


@kernel
def copy(address: int, halves: bool, out: Array) -> None:
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
def pair(x: Array, out: Array) -> None:
    """Convert an even number of float32 values to bf16, two per 32 bits."""
    halves = out.view(np.uint16)
    for i in range(len(x)):
        halves[i] = to_bf16(x[i])
