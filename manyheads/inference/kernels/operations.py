"""Operations of a Transformer block on rows of float32 numbers. Several threads call them for different rows.

In a matrix product, the activations are the left factor and are converted to the precision of the weights.
`quantize_row` converts each row to float32, bf16, or 8 bits with a scale and a zero point per row. All other operations
are in float32.
"""

from __future__ import annotations

import sys

import numba
import numpy as np
from numba import carray, types

from manyheads.inference.kernels import amx, tile
from manyheads.inference.kernels.arguments import GELU, GELU_TANH, RELU, SILU, Array
from manyheads.inference.kernels.processor import AMX_STEPS, BF16, COLUMNS, FLOAT32, HAS_AMX, INT8, LINE, MAX_ROWS, ROWS
from manyheads.inference.kernels.tile import arrive, arrived, bits_of, float_of, pointer, to_bf16

# Numba's options for all functions of the kernels. Sums may be reordered and fused with products; infinities and NaN
# keep their meaning. The functions have no Python wrapper: Python calls them only through `compiled.Kernel`.
OPTIONS: dict[str, bool | str | set[str]] = {
    "nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy", "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}  # fmt: skip
kernel = numba.njit(**OPTIONS)
# Decorator for functions that are always inlined. LLVM does not inline large functions itself, and attention over short
# sequences would take 10% more time in bf16.
part = numba.njit(**OPTIONS, inline="always")

# Codes that mean "no activation" and "no norm". They are np.int64, because Numba recompiles a function for each Python
# int literal.
NONE = np.int64(-1)

# Constants in float32. A Python float is float64 and would make a loop compute in float64.
ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
MIN_EXPONENT = np.float32(-87.0)  # minimum exponent: e^-87 is close to the smallest normal float32 number
MAX_EXPONENT = np.float32(87.0)
LOG2_E = np.float32(1.4426950408889634)
# ln 2 is split into two parts, so that the product n * LN2_HIGH is exact.
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
E6, E5, E4 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E3, E2, E1 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
ROOT_HALF = np.float32(0.7071067811865476)
# Coefficients of erf(x) = x p(x^2) / q(x^2) for x up to 4 (Eigen's float32 erf). Beyond 4, erf is 1. The error is below
# 5e-7.
FOUR = np.float32(4)
P0, P1, P2 = np.float32(-1.60960333262415e-02), np.float32(-2.95459980854025e-03), np.float32(-7.34990630326855e-04)
P3, P4, P5 = np.float32(-5.69250639462346e-05), np.float32(-2.10102402082508e-06), np.float32(2.77068142495902e-08)
P6 = np.float32(-2.72614225801306e-10)
Q0, Q1, Q2 = np.float32(-1.42647390514189e-02), np.float32(-7.37332916720468e-03), np.float32(-1.68282697438203e-03)
Q3, Q4 = np.float32(-2.13374055278905e-04), np.float32(-1.45660718464996e-05)
ROOT_2_PI, CUBIC = np.float32(0.7978845608028654), np.float32(0.044715)
LEVELS = np.float32(255)

if sys.platform == "win32":

    @numba.njit
    def yield_processor() -> int:
        return 0

else:
    yield_processor = types.ExternalFunction("sched_yield", types.int32())
# While a thread waits, it reads the counter up to this number of times before it yields its processor to other threads.
MAX_SPINS = 4096


@kernel
def wait(counter: int, turns: int, threads: int) -> int:
    """Wait until all threads have called this function `turns` + 1 times (barrier). Return `turns` + 1.

    counter  address of a counter that all threads increment
    turns    number of earlier calls, which the previous call has returned
    """
    turns += 1
    if threads > 1:
        arrive(counter)
        spins = 0
        while arrived(counter) < turns * threads:
            spins += 1
            if spins > MAX_SPINS:
                yield_processor()
    return turns


@kernel
def exp(x: np.float32) -> np.float32:
    """Return e^x in float32 for vectorized loops (polynomial of Cephes). Arguments beyond +-87 are clipped to +-87."""
    return exp_bounded(MAX_EXPONENT if x > MAX_EXPONENT else x)


@kernel
def exp_bounded(x: np.float32) -> np.float32:
    """Return e^x in float32 for x up to 87."""
    x = MIN_EXPONENT if x < MIN_EXPONENT else x
    n = np.floor(x * LOG2_E + HALF)
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = ((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r + E1
    return (p * r * r + r + ONE) * float_of((np.int32(n) + np.int32(127)) << np.int32(23))


@kernel
def activate(activation: int, x: Array) -> None:
    """Apply the activation function of a feed-forward network to x (N,), in place."""
    if activation == RELU:
        for i in range(len(x)):
            x[i] = ZERO if x[i] < ZERO else x[i]
    elif activation == SILU:
        for i in range(len(x)):
            x[i] = x[i] / (ONE + exp(-x[i]))
    elif activation == GELU:
        for i in range(len(x)):
            z = x[i] * ROOT_HALF
            z = -FOUR if z < -FOUR else z
            z = FOUR if z > FOUR else z
            y = z * z
            p = (((((P6 * y + P5) * y + P4) * y + P3) * y + P2) * y + P1) * y + P0
            q = (((Q4 * y + Q3) * y + Q2) * y + Q1) * y + Q0
            x[i] = x[i] * HALF * (ONE + z * p / q)
    elif activation == GELU_TANH:
        for i in range(len(x)):
            u = ROOT_2_PI * (x[i] + CUBIC * x[i] * x[i] * x[i])
            x[i] = x[i] * (ONE - ONE / (exp(TWO * u) + ONE))


@kernel
def normalize(x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
    """Compute the layer norm of one row, and write the result to `out`, which may be x."""
    total = ZERO
    for i in range(len(x)):
        total += x[i]
    mean = total / np.float32(len(x))
    squares = ZERO
    for i in range(len(x)):
        squares += (x[i] - mean) * (x[i] - mean)
    factor = ONE / np.sqrt(squares / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = (x[i] - mean) * factor * weight[i] + bias[i]


@kernel
def order(bits: Array) -> Array:
    """Convert the bits of a float32 number to an integer with the same sort order. The function is its own inverse."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@kernel
def quantize_row(kind: int, x: Array, out: Array, scales: Array, zeros: Array, row: int) -> None:
    """Convert one row to the precision of a matrix product, and write it into the bytes `out`.

    Bytes after the row stay zero.
    """
    count = len(x)
    if kind == FLOAT32:
        floats = out.view(np.float32)
        for i in range(count):
            floats[i] = x[i]
    elif kind == BF16:
        halves = out.view(np.uint16)
        for i in range(count):
            halves[i] = to_bf16(x[i])
    else:
        low, high = np.int32(0), np.int32(0)
        for i in range(count):
            number = order(bits_of(x[i]))
            low = number if number < low else low
            high = number if number > high else high
        minimum = float_of(order(low))
        # If the row contains NaN, its scale is NaN: the integer of NaN is larger than the integers of all numbers.
        scale = (float_of(order(high)) - minimum) / LEVELS
        scale = ONE if scale == ZERO else scale
        inverse = ONE / scale
        zero = np.floor(-minimum * inverse + HALF)
        shift = zero + HALF
        for i in range(count):
            level = np.int32(x[i] * inverse + shift)
            out[i] = np.uint8(np.int32(255) if level > np.int32(255) else level)
        scales[row], zeros[row] = scale, np.int32(zero)


@kernel
def multiply(
    kind: int, rows: int, a: int, a_stride: int, w: int, steps: int, out: int, out_stride: int, ahead: int,
    ahead_step: int,
) -> None:  # fmt: skip
    """Multiply up to MAX_ROWS rows of activations with COLUMNS columns of a weight (arguments of `tile.multiply`).

    All products call this function, so that the loops of `tile.multiply` are compiled only once.
    """
    if HAS_AMX and kind != FLOAT32 and rows >= MIN_AMX_ROWS and steps % AMX_STEPS == 0:
        for half in range(2):
            shift = half * 2 * LINE  # two tile registers of columns
            amx.multiply(kind, rows, a, a_stride, w + shift, steps, out + shift, out_stride)
        return
    while rows > 0:
        count = min(rows, ROWS)
        tile.multiply(kind, count, a, a_stride, w, steps, out, out_stride, ahead, ahead_step)
        rows -= count
        a += count * a_stride
        out += count * out_stride


@kernel
def rows_at_once(kind: int) -> int:
    """Return the maximum number of rows that `multiply` supports in the precision `kind`."""
    return MAX_ROWS if kind != FLOAT32 else ROWS


# minimum number of rows for which AMX is faster than vector instructions
MIN_AMX_ROWS = 4
# Weights that are read only once are prefetched from memory this number of bytes before they are used.
AHEAD = 4096


# Size in bytes of the activations that are read repeatedly: half of a core's L2 cache, which has 2 MiB on processors
# with AMX.
CACHED_BYTES = 1 << 20 if HAS_AMX else 1 << 19


@kernel
def product(
    kind: int, a: Array, scales: Array, zeros: Array, rows: int, weight: int, steps: int, first: int, last: int,
    bias: Array, factors: Array, sums: Array, add: bool, out: Array, scratch: Array,
) -> None:  # fmt: skip
    """Compute a W^T + bias for the groups of columns from `first` to `last`, and write or add the result to `out`.

    a        activations written by `quantize_row`: (rows, bytes), with scales and zero points (rows,) for 8-bit numbers
    weight   address of the weights from `pack`, with scale factors (N,) and column sums (N,) of 8-bit weights
    add      True to add the result to `out`, False to write it
    out      (rows, N) result
    scratch  scratch memory of this thread, (MAX_ROWS, COLUMNS)
    """
    start, a_stride, stride, width = a.ctypes.data, a.strides[0], 4 * COLUMNS, out.shape[1]
    height = rows_at_once(kind)
    block = max(height, CACHED_BYTES // (4 * steps) // height * height)
    for top in range(0, rows, block):
        count = min(block, rows - top)
        tiles = (count + height - 1) // height
        for group in range(first, last):
            w, left = weight + group * steps * stride, group * COLUMNS
            columns = min(COLUMNS, width - left)
            b, f, s = bias[left : left + columns], factors[left : left + columns], sums[left : left + columns]
            for t in range(tiles):
                begin, end = top + t * count // tiles, top + (t + 1) * count // tiles
                # Prefetch the weights of the next group of columns. With several tiles of rows, each tile prefetches a
                # part of them.
                if tiles == 1:
                    ahead, ahead_step = w + AHEAD, stride
                else:
                    ahead_step = max(LINE, stride // tiles)
                    ahead = w + steps * stride + t * steps * ahead_step
                    if t * ahead_step >= stride:
                        ahead, ahead_step = w, stride
                multiply(kind, end - begin, start + begin * a_stride, a_stride, w, steps, scratch.ctypes.data, stride,
                         ahead, ahead_step)  # fmt: skip
                for row in range(begin, end):
                    values = floats_at(scratch.ctypes.data + (row - begin) * stride, columns)
                    line = floats_at(out.ctypes.data + row * out.strides[0] + 4 * left, columns)
                    if kind == INT8:
                        whole, scale, zero = values.view(np.int32), scales[row], zeros[row]
                        for c in range(columns):
                            values[c] = np.float32(whole[c] - zero * s[c]) * (scale * f[c])
                    if add:
                        for c in range(columns):
                            line[c] += values[c] + b[c]
                    else:
                        for c in range(columns):
                            line[c] = values[c] + b[c]


@kernel
def floats_at(address: int, count: int) -> Array:
    """Return `count` float32 numbers at an address as an array, which is faster than slicing an array."""
    return carray(pointer(address), (count,), np.float32)
