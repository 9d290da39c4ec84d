"""Arguments of the inference kernels: sizes, packed weights, cached keys and values, and scratch memory.

The module does not import Numba, like all modules that only call kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from manyheads.inference.kernels.processor import AMX_STEPS, COLUMNS, MAX_ROWS

Array: TypeAlias = NDArray[Any]  # NumPy array; mostly float32, otherwise the docstrings state the type

RELU, SILU, GELU, GELU_TANH = range(4)


class Sizes(NamedTuple):
    """Sizes and options of a stack, which are the same in all calls."""

    kind: int
    layers: int
    heads: int
    width: int
    cross: int  # 1 if the stack has cross-attention, else 0
    cross_heads: int
    norm_first: int
    final_norm: int
    activation: int


class Weights(NamedTuple):
    """Packed weights of all layers of a stack.

    packed   weights of the matrix products, (layers, bytes)
    floats   weights of the norms, then bias and scale factors of each product, (layers, count)
    sums     column sums of 8-bit weights, (layers, count)
    places   sizes of each matrix product, and offsets of its weights in the arrays above, (products, 6)
    norm     weight and bias of the final norm, (2, width)
    eps      epsilon of the layers' norms and of the final norm, (2,)
    scales   factors of the attention scores of self-attention and cross-attention, (2,)
    """

    packed: Array
    floats: Array
    sums: Array
    places: Array
    norm: Array
    eps: Array
    scales: Array


class Memory(NamedTuple):
    """Cached keys and values of earlier positions, for all layers.

    addresses  memory addresses of keys and values, 8 bytes each, (layers, 2)
    halves     True if the numbers are bf16, False if they are float32, (1,)
    strides    distance in memory between slots, heads and positions, in elements, (3,)
    slots      memory slot of each position of each sequence, (B, positions); or one slot for all positions of a
               sequence, (B, 1)
    lengths    number of cached positions of each sequence, (B,)
    """

    addresses: Array
    halves: Array
    strides: Array
    slots: Array
    lengths: Array


class Scratch(NamedTuple):
    """Scratch memory of all threads for a given number of rows. Each thread has its own part of `work` and `tiles`."""

    left: Array  # (rows, bytes)
    scales: Array  # (rows,)
    zeros: Array  # (rows,)
    qkv: Array  # queries, keys and values of all rows, (rows, 3 * inner)
    mixed: Array  # (rows, inner)
    query: Array  # queries of cross-attention, (rows, inner)
    hidden: Array  # (rows, feed-forward)
    normed: Array  # (threads, width)
    work: Array  # (threads, numbers)
    tiles: Array  # (threads, MAX_ROWS, COLUMNS)


class HeadView(NamedTuple):
    """Views of the memory that attention of one head over one sequence reads and writes.

    query, out     arrays (count, ...), of which the head uses the columns `left` to `left + width`
    keys, values   addresses of float32 numbers, or of bf16 numbers if `halves` is true. The vector at position s of
                   head h begins slots[s] * slot + s * step + h * head numbers after the address
    total          number of key positions. The last query attends to all of them. With causal attention, each earlier
                   query attends to one position less
    scale          factor of the attention scores
    """

    query: Array
    out: Array
    left: int
    width: int
    keys: int
    values: int
    halves: bool | np.bool
    slots: Array
    slot: int | np.int64
    head: int
    step: int
    total: int
    causal: bool | np.bool
    scale: float


class Packed(NamedTuple):
    """Keys and values of one head, packed like the weights of matrix products, with scratch memory for the products.

    kind       precision of the products
    keys       (groups of keys, steps, COLUMNS)
    values     (groups of values, steps, COLUMNS)
    scores     attention scores of the rows of a product, (rows, keys)
    left_side  rows in the precision of a product, (rows, words)
    mixed      weighted sums of values, the result of a product, (rows, COLUMNS)
    factors    factor of each row: the sum of its exponentials times this factor is one, (rows,)
    unit       number of which the number of keys in a product must be a multiple
    per_word   number of values in 32 bits
    """

    kind: int
    keys: Array
    values: Array
    scores: Array
    left_side: Array
    mixed: Array
    factors: Array
    unit: int
    per_word: int


def work_size(total: int, width: int) -> int:
    """Return the number of float32 numbers of scratch memory that `attend` needs for `total` keys.

    width  width of a head
    """
    across, down = -(-total // COLUMNS), -(-width // COLUMNS)
    columns = across * width + down * (total + AMX_STEPS) + MAX_ROWS * (across + max(across, down) + 1)
    return columns * COLUMNS + 2 * width + MAX_ROWS
