"""A whole stack of blocks as one function, run by each of several threads at once.

Rows of all sequences stand one below the other, without padding. Within a layer the threads share the columns of each
product, the rows of each norm and the heads of each attention, and wait for each other in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from manyheads.inference.attending import attend, numbers, short_numbers
from manyheads.inference.kernels import NONE, activate, kernel, lent, normalize, product, ready, wait
from manyheads.inference.tile import COLUMNS, rounded

# Numba compiles a function anew for every plain number that it is called with, not for those of NumPy's.
# The products of a layer, by their row in `Weights.places`
QKV, OUTPUT, CROSS_QUERY, CROSS_OUTPUT, EXPAND, CONTRACT = (np.int64(i) for i in range(6))
# columns of `Weights.places`: steps, columns, and where its packed weight, bias, factors and sums begin
STEPS, WIDTH, PACKED, BIAS, FACTORS, SUMS = range(6)
# the norms of a layer, by their place in its floats: weights and biases of each
ATTENTION_NORM, CROSS_NORM, FEED_FORWARD_NORM = (np.int64(i) for i in range(3))
FIRST = np.int64(0)  # layer, or product
NO, YES = np.bool_(False), np.bool_(True)


class Sizes(NamedTuple):
    """What does not change from call to call."""

    kind: int
    layers: int
    heads: int
    width: int
    cross: int  # 1 where there is cross-attention
    cross_heads: int
    norm_first: int
    final_norm: int
    activation: int


class Weights(NamedTuple):
    """All layers of a stack.

    packed   (layers, bytes) the weights of the products
    floats   (layers, numbers) norms first, then each product's bias and factors
    sums     (layers, numbers) of the columns of 8-bit weights
    places   (products, 6) where what begins
    norm     (2, width) the final norm
    eps      (2,) of the layers' norms and of the final one
    scales   (2,) that scores of self- and cross-attention are multiplied by
    """

    packed: Any
    floats: Any
    sums: Any
    places: Any
    norm: Any
    eps: Any
    scales: Any


class Memory(NamedTuple):
    """Keys and values that rows look at, besides their own.

    addresses  (layers, 2) of keys and values, 8 bytes each
    halves     (1,) whether they are bf16, not float32
    strides    (3,) numbers from a slot to the next, from a head, from a position
    slots      (B, positions) which slot holds that position of that sequence; (B, 1): one holds them all
    lengths    (B,) positions that are there already
    """

    addresses: Any
    halves: Any
    strides: Any
    slots: Any
    lengths: Any


class Scratch(NamedTuple):
    """Memory for so many rows; `work` and `tiles` for each thread."""

    left: Any  # (rows, bytes)
    scales: Any  # (rows,)
    zeros: Any  # (rows,)
    wide: Any  # (rows, 3 * inner) queries, keys, values
    mixed: Any  # (rows, inner)
    query: Any  # (rows, inner of cross-attention)
    hidden: Any  # (rows, feed-forward)
    normed: Any  # (threads, width)
    work: Any  # (threads, numbers)
    tiles: Any  # (threads, ROWS, COLUMNS)


@kernel
def lent_weights(w: Weights) -> Weights:
    return Weights(
        lent(w.packed), lent(w.floats), lent(w.sums), lent(w.places), lent(w.norm), lent(w.eps), lent(w.scales)
    )


@kernel
def lent_memory(m: Memory) -> Memory:
    return Memory(lent(m.addresses), lent(m.halves), lent(m.strides), lent(m.slots), lent(m.lengths))


@kernel
def lent_scratch(s: Scratch) -> Scratch:
    return Scratch(
        lent(s.left), lent(s.scales), lent(s.zeros), lent(s.wide), lent(s.mixed), lent(s.query), lent(s.hidden),
        lent(s.normed), lent(s.work), lent(s.tiles),
    )  # fmt: skip


@kernel
def linear(
    which: int, layer: int, thread: int, threads: int, sizes: Sizes, weights: Weights, scratch: Scratch, add: bool,
    out: Any,
) -> None:  # fmt: skip
    """This thread's columns of a product of all rows."""
    place = weights.places[which]
    groups = (place[WIDTH] + COLUMNS - 1) // COLUMNS
    floats, width = weights.floats[layer], place[WIDTH]
    product(
        sizes.kind, scratch.left, scratch.scales, scratch.zeros, out.shape[0],
        weights.packed.ctypes.data + layer * weights.packed.strides[0] + place[PACKED], place[STEPS],
        thread * groups // threads, (thread + 1) * groups // threads,
        floats[place[BIAS] : place[BIAS] + width], floats[place[FACTORS] : place[FACTORS] + width],
        weights.sums[layer, place[SUMS] : place[SUMS] + width], add, out, scratch.tiles[thread],
    )  # fmt: skip


@kernel
def prepare(
    x: Any, norm: int, layer: int, keep: bool, thread: int, threads: int, sizes: Sizes, weights: Weights,
    scratch: Scratch,
) -> None:  # fmt: skip
    """This thread's rows as the left side of a product, after a layer's norm unless norm is -1; keep: x takes it."""
    rows, width = x.shape[0], x.shape[1]
    at = 2 * norm * width
    for row in range(thread * rows // threads, (thread + 1) * rows // threads):
        if norm < 0:
            ready(sizes.kind, x[row], scratch.left[row], scratch.scales, scratch.zeros, row)
            continue
        normed = x[row] if keep else scratch.normed[thread]
        floats = weights.floats[layer]
        normalize(x[row], floats[at : at + width], floats[at + width : at + 2 * width], weights.eps[0], normed)
        ready(sizes.kind, normed, scratch.left[row], scratch.scales, scratch.zeros, row)


@kernel
def self_attention(
    layer: int, thread: int, threads: int, sizes: Sizes, weights: Weights, starts: Any, cached: bool, memory: Memory,
    causal: bool, scratch: Scratch,
) -> None:  # fmt: skip
    """This thread's heads of all sequences; where there is a memory, their keys and values join it."""
    inner = scratch.mixed.shape[1]
    width = inner // sizes.heads
    pairs = (len(starts) - 1) * sizes.heads
    for pair in range(thread * pairs // threads, (thread + 1) * pairs // threads):
        sequence, head = pair // sizes.heads, pair % sizes.heads
        begin, end = starts[sequence], starts[sequence + 1]
        left, count = head * width, end - begin
        rows = scratch.wide[begin:end]
        keys = rows.ctypes.data + 4 * (inner + left)
        values, halves, slot, apart, step, total = keys + 4 * inner, NO, 0, width, 3 * inner, count
        if cached:
            halves, known, apart, step = (
                memory.halves[0],
                memory.lengths[sequence],
                memory.strides[1],
                memory.strides[2],
            )
            size, total = 2 if halves else 4, known + count
            own = size * (sequence * memory.strides[0] + head * memory.strides[1])
            keys, values = memory.addresses[layer, 0] + own, memory.addresses[layer, 1] + own
            store(rows[:, inner + left : inner + left + width], keys + size * known * step, halves, step)
            store(rows[:, 2 * inner + left : 2 * inner + left + width], values + size * known * step, halves, step)
            if memory.slots.shape[1] > 1:
                slot = memory.strides[0]
                keys, values = keys - size * sequence * slot, values - size * sequence * slot
        attend(sizes.kind, rows, count, left, width, keys, values, halves, memory.slots[sequence], slot, apart, step,
               total, causal, weights.scales[0], scratch.mixed[begin:end], scratch.work[thread])  # fmt: skip


@kernel
def store(vectors: Any, address: int, halves: bool, step: int) -> None:
    """Vectors (positions, width) to where a memory wants them."""
    if halves:
        shorts, at = short_numbers(), address // 2
        for i in range(vectors.shape[0]):
            for d in range(vectors.shape[1]):
                shorts[at + i * step + d] = rounded(vectors[i, d])
    else:
        memory, at = numbers(), address // 4
        for i in range(vectors.shape[0]):
            for d in range(vectors.shape[1]):
                memory[at + i * step + d] = vectors[i, d]


@kernel
def cross_attention(
    layer: int, thread: int, threads: int, sizes: Sizes, weights: Weights, starts: Any, memory: Memory,
    scratch: Scratch,
) -> None:  # fmt: skip
    """The same over what an encoder has read; sequences with one source share it."""
    query = scratch.query
    width = query.shape[1] // sizes.cross_heads
    pairs = (len(starts) - 1) * sizes.cross_heads
    for pair in range(thread * pairs // threads, (thread + 1) * pairs // threads):
        sequence, head = pair // sizes.cross_heads, pair % sizes.cross_heads
        begin, end = starts[sequence], starts[sequence + 1]
        source = memory.slots[sequence]
        halves = memory.halves[0]
        shift = (2 if halves else 4) * (source[0] * memory.strides[0] + head * memory.strides[1])
        attend(sizes.kind, query[begin:end], end - begin, head * width, width, memory.addresses[layer, 0] + shift,
               memory.addresses[layer, 1] + shift, halves, source, FIRST, memory.strides[1], memory.strides[2],
               memory.lengths[sequence], NO, weights.scales[1], query[begin:end], scratch.work[thread])  # fmt: skip


@kernel
def run(
    thread: int, threads: int, counter: int, sizes: Sizes, weights: Weights, x: Any, starts: Any, causal: bool,
    cached: bool, memory: Memory, source: Memory, scratch: Scratch,
) -> None:  # fmt: skip
    """x (rows, width) through all layers, in place.

    counter  the address of a 64-bit zero, for waiting
    starts   (B + 1,) the row where each sequence begins, and the end
    cached   whether keys and values of earlier positions are in `memory`, and those of x are to join them
    source   what cross-attention looks at
    """
    weights, x, starts, scratch = lent_weights(weights), lent(x), lent(starts), lent_scratch(scratch)
    memory, source = lent_memory(memory), lent_memory(source)
    rows, width = x.shape
    turn, norms_first = 0, sizes.norm_first == 1
    for layer in range(sizes.layers):
        if norms_first:
            prepare(x, ATTENTION_NORM, layer, NO, thread, threads, sizes, weights, scratch)
        else:  # what the layer before has added waits for its norm
            after = FEED_FORWARD_NORM if layer else NONE
            prepare(x, after, layer - 1, YES, thread, threads, sizes, weights, scratch)
        turn = wait(counter, turn, threads)
        linear(QKV, layer, thread, threads, sizes, weights, scratch, NO, scratch.wide)
        turn = wait(counter, turn, threads)
        self_attention(layer, thread, threads, sizes, weights, starts, cached, memory, causal, scratch)
        turn = wait(counter, turn, threads)
        prepare(scratch.mixed, NONE, layer, NO, thread, threads, sizes, weights, scratch)
        turn = wait(counter, turn, threads)
        linear(OUTPUT, layer, thread, threads, sizes, weights, scratch, YES, x)
        turn = wait(counter, turn, threads)
        if sizes.cross == 1:
            norm = CROSS_NORM if norms_first else ATTENTION_NORM
            prepare(x, norm, layer, not norms_first, thread, threads, sizes, weights, scratch)
            turn = wait(counter, turn, threads)
            linear(CROSS_QUERY, layer, thread, threads, sizes, weights, scratch, NO, scratch.query)
            turn = wait(counter, turn, threads)
            cross_attention(layer, thread, threads, sizes, weights, starts, source, scratch)
            turn = wait(counter, turn, threads)
            prepare(scratch.query, NONE, layer, NO, thread, threads, sizes, weights, scratch)
            turn = wait(counter, turn, threads)
            linear(CROSS_OUTPUT, layer, thread, threads, sizes, weights, scratch, YES, x)
            turn = wait(counter, turn, threads)
        norm = FEED_FORWARD_NORM if norms_first else (CROSS_NORM if sizes.cross == 1 else ATTENTION_NORM)
        prepare(x, norm, layer, not norms_first, thread, threads, sizes, weights, scratch)
        turn = wait(counter, turn, threads)
        linear(EXPAND, layer, thread, threads, sizes, weights, scratch, NO, scratch.hidden)
        turn = wait(counter, turn, threads)
        for row in range(thread * rows // threads, (thread + 1) * rows // threads):
            activate(sizes.activation, scratch.hidden[row])
            ready(sizes.kind, scratch.hidden[row], scratch.left[row], scratch.scales, scratch.zeros, row)
        turn = wait(counter, turn, threads)
        linear(CONTRACT, layer, thread, threads, sizes, weights, scratch, YES, x)
        turn = wait(counter, turn, threads)
    at = 2 * FEED_FORWARD_NORM * width
    for row in range(thread * rows // threads, (thread + 1) * rows // threads):
        if not norms_first:
            floats = weights.floats[sizes.layers - 1]
            normalize(x[row], floats[at : at + width], floats[at + width : at + 2 * width], weights.eps[0], x[row])
        if sizes.final_norm == 1:
            normalize(x[row], weights.norm[0], weights.norm[1], weights.eps[1], x[row])


@kernel
def run_linear(
    thread: int, threads: int, counter: int, sizes: Sizes, weights: Weights, x: Any, out: Any, scratch: Scratch
) -> None:
    """One product: x (rows, width) -> out (rows, columns)."""
    weights, x, out, scratch = lent_weights(weights), lent(x), lent(out), lent_scratch(scratch)
    prepare(x, NONE, FIRST, NO, thread, threads, sizes, weights, scratch)
    wait(counter, 0, threads)
    linear(QKV, FIRST, thread, threads, sizes, weights, scratch, NO, out)
