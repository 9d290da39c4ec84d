"""Kernel that runs a whole stack of Transformer blocks as one compiled function, with several threads.

The rows of all sequences are concatenated without padding. Within a layer, the threads divide the columns of each
matrix product, the rows of each norm and the heads of each attention. They synchronize after each of these steps.
"""

from __future__ import annotations

import numpy as np

from manyheads.inference.kernels import amx
from manyheads.inference.kernels.arguments import Array, HeadView, Memory, Scratch, Sizes, Weights
from manyheads.inference.kernels.attending import attend, bf16_memory, float_memory
from manyheads.inference.kernels.operations import NONE, activate, kernel, normalize, product, quantize_row, wait
from manyheads.inference.kernels.processor import COLUMNS, HAS_AMX
from manyheads.inference.kernels.tile import to_bf16

# Indices of the matrix products of a layer, which are also their rows in `Weights.places`. They are np.int64, because
# Numba recompiles a function for each Python int literal.
QKV, OUTPUT, CROSS_QUERY, CROSS_OUTPUT, EXPAND, CONTRACT = (np.int64(i) for i in range(6))
# Columns of `Weights.places`: number of steps and number of columns of a matrix product, then the offsets of its packed
# weight, bias, scale factors and column sums.
STEPS, WIDTH, PACKED, BIAS, FACTORS, SUMS = range(6)
# Indices of the norms of a layer, in the order of their weights and biases in `Weights.floats`.
ATTENTION_NORM, CROSS_NORM, FEED_FORWARD_NORM = (np.int64(i) for i in range(3))
FIRST = np.int64(0)  # index of the first layer, or of the first matrix product
FALSE, TRUE = np.bool_(False), np.bool_(True)


@kernel
def linear(
    which: int, layer: int, thread: int, threads: int, sizes: Sizes, weights: Weights, scratch: Scratch, add: bool,
    out: Array,
) -> None:  # fmt: skip
    """Compute this thread's output columns of a matrix product for all rows.

    which  index of the matrix product in the layer
    add    True to add the result to `out`, False to write it
    """
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
    x: Array, norm: int, layer: int, keep: bool, thread: int, threads: int, sizes: Sizes, weights: Weights,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Convert this thread's rows to the format that a matrix product requires for its left factor.

    norm  index of the layer norm that is applied to the rows first; -1 for none
    keep  if True, also write the normalized rows to x
    """
    rows, width = x.shape[0], x.shape[1]
    at = 2 * norm * width
    for row in range(thread * rows // threads, (thread + 1) * rows // threads):
        if norm < 0:
            quantize_row(sizes.kind, x[row], scratch.left[row], scratch.scales, scratch.zeros, row)
            continue
        normed = x[row] if keep else scratch.normed[thread]
        floats = weights.floats[layer]
        normalize(x[row], floats[at : at + width], floats[at + width : at + 2 * width], weights.eps[0], normed)
        quantize_row(sizes.kind, normed, scratch.left[row], scratch.scales, scratch.zeros, row)


@kernel
def self_attention(
    layer: int, thread: int, threads: int, sizes: Sizes, weights: Weights, starts: Array, cached: bool, memory: Memory,
    causal: bool, scratch: Scratch,
) -> None:  # fmt: skip
    """Compute self-attention for the heads of this thread. With a cache, new keys and values are added to it."""
    inner = scratch.mixed.shape[1]
    width = inner // sizes.heads
    pairs = (len(starts) - 1) * sizes.heads
    for pair in range(thread * pairs // threads, (thread + 1) * pairs // threads):
        sequence, head = pair // sizes.heads, pair % sizes.heads
        begin, end = starts[sequence], starts[sequence + 1]
        left, count = head * width, end - begin
        rows = scratch.qkv[begin:end]
        keys = rows.ctypes.data + 4 * (inner + left)
        values, halves, slot, stride, step, total = keys + 4 * inner, FALSE, 0, width, 3 * inner, count
        if cached:
            halves, earlier, stride, step = (
                memory.halves[0],
                memory.lengths[sequence],
                memory.strides[1],
                memory.strides[2],
            )
            size, total = 2 if halves else 4, earlier + count
            own = size * (sequence * memory.strides[0] + head * memory.strides[1])
            keys, values = memory.addresses[layer, 0] + own, memory.addresses[layer, 1] + own
            store(rows[:, inner + left : inner + left + width], keys + size * earlier * step, halves, step)
            store(rows[:, 2 * inner + left : 2 * inner + left + width], values + size * earlier * step, halves, step)
            if memory.slots.shape[1] > 1:
                slot = memory.strides[0]
                keys, values = keys - size * sequence * slot, values - size * sequence * slot
        view = HeadView(rows, scratch.mixed[begin:end], left, width, keys, values, halves, memory.slots[sequence], slot,
                        stride, step, total, causal, weights.scales[0])  # fmt: skip
        attend(sizes.kind, view, scratch.work[thread])


@kernel
def store(vectors: Array, address: int, halves: bool, step: int) -> None:
    """Write the keys or values (positions, width) of consecutive positions to an address in a cache.

    step  distance of two positions in the cache, in numbers
    """
    if halves:
        shorts, at = bf16_memory(), address // 2
        for i in range(vectors.shape[0]):
            for d in range(vectors.shape[1]):
                shorts[at + i * step + d] = to_bf16(vectors[i, d])
    else:
        memory, at = float_memory(), address // 4
        for i in range(vectors.shape[0]):
            for d in range(vectors.shape[1]):
                memory[at + i * step + d] = vectors[i, d]


@kernel
def cross_attention(
    layer: int, thread: int, threads: int, sizes: Sizes, weights: Weights, starts: Array, memory: Memory,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Compute cross-attention over the encoder output for the heads of this thread.

    Sequences with the same source sentence, such as the hypotheses of a beam search, share its keys and values.
    """
    query = scratch.query
    width = query.shape[1] // sizes.cross_heads
    pairs = (len(starts) - 1) * sizes.cross_heads
    for pair in range(thread * pairs // threads, (thread + 1) * pairs // threads):
        sequence, head = pair // sizes.cross_heads, pair % sizes.cross_heads
        begin, end = starts[sequence], starts[sequence + 1]
        source = memory.slots[sequence]
        halves = memory.halves[0]
        shift = (2 if halves else 4) * (source[0] * memory.strides[0] + head * memory.strides[1])
        rows, keys, values = query[begin:end], memory.addresses[layer, 0] + shift, memory.addresses[layer, 1] + shift
        view = HeadView(rows, rows, head * width, width, keys, values, halves, source, FIRST, memory.strides[1],
                        memory.strides[2], memory.lengths[sequence], FALSE, weights.scales[1])  # fmt: skip
        attend(sizes.kind, view, scratch.work[thread])


@kernel
def run(
    thread: int, threads: int, counter: int, sizes: Sizes, weights: Weights, x: Array, starts: Array, causal: bool,
    cached: bool, memory: Memory, source: Memory, scratch: Scratch,
) -> None:  # fmt: skip
    """Apply all layers of the stack to x (rows, width), in place.

    counter  address of a 64-bit counter with the value 0, for synchronization of the threads
    starts   index of the first row of each sequence, then the number of rows, (B + 1,)
    cached   True if `memory` contains keys and values of earlier positions; new keys and values are then added to it
    source   keys and values of the encoder output, for cross-attention
    """
    rows, width = x.shape
    turn, norms_first = 0, sizes.norm_first == 1
    for layer in range(sizes.layers):
        if norms_first:
            prepare(x, ATTENTION_NORM, layer, FALSE, thread, threads, sizes, weights, scratch)
        else:  # In a post-norm model, the output of the previous layer is normalized here.
            after = FEED_FORWARD_NORM if layer else NONE
            prepare(x, after, layer - 1, TRUE, thread, threads, sizes, weights, scratch)
        turn = wait(counter, turn, threads)
        linear(QKV, layer, thread, threads, sizes, weights, scratch, FALSE, scratch.qkv)
        turn = wait(counter, turn, threads)
        self_attention(layer, thread, threads, sizes, weights, starts, cached, memory, causal, scratch)
        turn = wait(counter, turn, threads)
        prepare(scratch.mixed, NONE, layer, FALSE, thread, threads, sizes, weights, scratch)
        turn = wait(counter, turn, threads)
        linear(OUTPUT, layer, thread, threads, sizes, weights, scratch, TRUE, x)
        turn = wait(counter, turn, threads)
        if sizes.cross == 1:
            norm = CROSS_NORM if norms_first else ATTENTION_NORM
            prepare(x, norm, layer, not norms_first, thread, threads, sizes, weights, scratch)
            turn = wait(counter, turn, threads)
            linear(CROSS_QUERY, layer, thread, threads, sizes, weights, scratch, FALSE, scratch.query)
            turn = wait(counter, turn, threads)
            cross_attention(layer, thread, threads, sizes, weights, starts, source, scratch)
            turn = wait(counter, turn, threads)
            prepare(scratch.query, NONE, layer, FALSE, thread, threads, sizes, weights, scratch)
            turn = wait(counter, turn, threads)
            linear(CROSS_OUTPUT, layer, thread, threads, sizes, weights, scratch, TRUE, x)
            turn = wait(counter, turn, threads)
        norm = FEED_FORWARD_NORM if norms_first else (CROSS_NORM if sizes.cross == 1 else ATTENTION_NORM)
        prepare(x, norm, layer, not norms_first, thread, threads, sizes, weights, scratch)
        turn = wait(counter, turn, threads)
        linear(EXPAND, layer, thread, threads, sizes, weights, scratch, FALSE, scratch.hidden)
        turn = wait(counter, turn, threads)
        for row in range(thread * rows // threads, (thread + 1) * rows // threads):
            activate(sizes.activation, scratch.hidden[row])
            quantize_row(sizes.kind, scratch.hidden[row], scratch.left[row], scratch.scales, scratch.zeros, row)
        turn = wait(counter, turn, threads)
        linear(CONTRACT, layer, thread, threads, sizes, weights, scratch, TRUE, x)
        turn = wait(counter, turn, threads)
    at = 2 * FEED_FORWARD_NORM * width
    for row in range(thread * rows // threads, (thread + 1) * rows // threads):
        if not norms_first:
            floats = weights.floats[sizes.layers - 1]
            normalize(x[row], floats[at : at + width], floats[at + width : at + 2 * width], weights.eps[0], x[row])
        if sizes.final_norm == 1:
            normalize(x[row], weights.norm[0], weights.norm[1], weights.eps[1], x[row])
    if HAS_AMX:
        amx.release()


@kernel
def run_linear(
    thread: int, threads: int, counter: int, sizes: Sizes, weights: Weights, x: Array, out: Array, scratch: Scratch
) -> None:
    """Compute one matrix product: x (rows, width) -> out (rows, columns)."""
    prepare(x, NONE, FIRST, FALSE, thread, threads, sizes, weights, scratch)
    wait(counter, 0, threads)
    linear(QKV, FIRST, thread, threads, sizes, weights, scratch, FALSE, out)
    if HAS_AMX:
        amx.release()
