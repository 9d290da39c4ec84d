"""Attention of one head over one sequence, for the fused functions: few queries look at keys where these stand, many
at keys and values that are laid out as the weights of two products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from manyheads.lowering import tile
from manyheads.lowering.kernels import ONE, ZERO, exp, kernel, multiply
from manyheads.lowering.tile import COLUMNS, FLOAT32, LANES, ROWS, float_of, pointer


@kernel
def softmax(scores: Any, scale: Any) -> None:
    """Of one row, in place; scores are multiplied by `scale` first."""
    highest = scores[0]
    for i in range(len(scores)):
        highest = scores[i] if scores[i] > highest else highest
    total = ZERO
    for i in range(len(scores)):
        scores[i] = exp((scores[i] - highest) * scale)
        total += scores[i]
    inverse = ONE / total
    for i in range(len(scores)):
        scores[i] *= inverse


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
    query: Any, count: int, left: int, width: int, keys: int, values: int, halves: bool, slots: Any, slot: int,
    head: int, step: int, total: int, causal: bool, scale: Any, out: Any, work: Any,
) -> None:  # fmt: skip
    """One head of one sequence: softmax(q k^T * scale) v for `count` queries.

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
            softmax(scores, scale)
            tile.mix(vectors, halves, scores.ctypes.data, values, at, slot_step, size * slot, size * step, seen, o,
                     keys + size * head - values)  # fmt: skip
        return
    # many: keys and values laid out as the weights of two products, (groups, steps, COLUMNS)
    across, down = (total + COLUMNS - 1) // COLUMNS, (width + COLUMNS - 1) // COLUMNS
    packed_keys = work[: across * width * COLUMNS].reshape(across, width, COLUMNS)
    work = work[across * width * COLUMNS :]
    packed_values = work[: down * total * COLUMNS].reshape(down, total, COLUMNS)
    work = work[down * total * COLUMNS :]
    scores = work[: ROWS * across * COLUMNS].reshape(ROWS, across * COLUMNS)
    mixed = work[ROWS * across * COLUMNS :][: ROWS * COLUMNS].reshape(ROWS, COLUMNS)
    for s in range(total):
        shift = (slots[s] * slot if slot else 0) + s * step
        if halves:
            shorts = short_numbers()
            for d in range(width):
                k, v = np.int32(shorts[keys // 2 + shift + d]), np.int32(shorts[values // 2 + shift + d])
                packed_keys[s // COLUMNS, d, s % COLUMNS] = float_of(k << np.int32(16))
                packed_values[d // COLUMNS, s, d % COLUMNS] = float_of(v << np.int32(16))
        else:
            memory = numbers()
            for d in range(width):
                packed_keys[s // COLUMNS, d, s % COLUMNS] = memory[keys // 4 + shift + d]
                packed_values[d // COLUMNS, s, d % COLUMNS] = memory[values // 4 + shift + d]
    tiles = (count + ROWS - 1) // ROWS
    for t in range(tiles):
        begin, end = t * count // tiles, (t + 1) * count // tiles
        most = total - (count - end) if causal else total
        q = query.ctypes.data + begin * query.strides[0] + 4 * left
        for group in range((most + COLUMNS - 1) // COLUMNS):
            at = scores.ctypes.data + 4 * COLUMNS * group
            multiply(FLOAT32, end - begin, q, query.strides[0], packed_keys[group].ctypes.data, width, at,
                     scores.strides[0])  # fmt: skip
        for i in range(begin, end):
            seen = total - (count - 1 - i) if causal else total
            softmax(scores[i - begin, :seen], scale)
            scores[i - begin, seen:most] = ZERO
        for group in range(down):
            multiply(FLOAT32, end - begin, scores.ctypes.data, scores.strides[0], packed_values[group].ctypes.data,
                     most, mixed.ctypes.data, mixed.strides[0])  # fmt: skip
            some = min(COLUMNS, width - group * COLUMNS)
            for i in range(begin, end):
                for d in range(some):
                    out[i, left + group * COLUMNS + d] = mixed[i - begin, d]


def work_size(total: int, width: int) -> int:
    """Float32 numbers that `attend` needs for so many keys."""
    across, down = -(-total // COLUMNS), -(-width // COLUMNS)
    return (across * width + down * total + ROWS * (across + 1)) * COLUMNS
