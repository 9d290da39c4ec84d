"""Innermost loop of the inference kernels: a tile of a matrix product, generated as LLVM code.

Every product of the fused kernels multiplies `rows` rows of activations with one group of `COLUMNS` columns of a
weight. Each step of the loop reads 4 bytes of each row: one float32, two bf16 or four 8-bit numbers. It copies them
into all lanes of a vector register, and multiplies them with 4 bytes of each column:

    float32   acc += a * w                    any processor
    bf16      acc += a0 * w0 + a1 * w1        dot product of pairs, summed in float32 (AVX512-BF16)
    int8      acc += a0 * w0 + ... + a3 * w3  unsigned times signed bytes, summed in int32 (AVX512-VNNI, AVX-VNNI)

So one memory layout of the weights and one loop serve all three precisions; only the instruction differs. All
accumulators of a tile stay in registers. Compilers do not reliably generate these instructions from plain loops.

Processors with AMX have another loop for bf16 and int8, in `amx.py`, which reads the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from manyheads.inference.kernels.llvm import Builder, Context, Value
from manyheads.inference.kernels.processor import (
    BF16,
    COLUMNS,
    FLOAT32,
    HAS_BF16,
    HAS_INT8,
    INT8,
    LANES,
    LINE,
    ROWS,
    VECTORS,
    WIDTHS,
)  # fmt: skip

_INT8, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT32 = ir.FloatType()


class _BFloat16(ir.Type):
    """LLVM's type bfloat, which llvmlite does not define."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


def _instruction(kind: int) -> tuple[str, Value, Value]:
    """Return the LLVM instruction for products in a precision, and the types of the accumulator and of the factors."""
    bits = LANES * 32
    if kind == FLOAT32:
        floats = ir.VectorType(_FLOAT32, LANES)
        return f"llvm.fma.v{LANES}f32", floats, floats
    if kind == BF16:
        name = f"llvm.x86.avx512bf16.dpbf16ps.{bits}"
        return name, ir.VectorType(_FLOAT32, LANES), ir.VectorType(_BFloat16(), LANES * 2)
    return f"llvm.x86.avx512.vpdpbusd.{bits}", ir.VectorType(_INT32, LANES), ir.VectorType(_INT8, LANES * 4)


def switch(b: Builder, number: Value, cases: Mapping[int, Callable[[], None]]) -> None:
    """Generate the LLVM code of a switch statement: run the case whose key equals `number`, if there is one."""
    after = b.append_basic_block("chosen")
    choice = b.switch(number, after)
    for value, write in cases.items():
        choice.add_case(_INT64(value), b.append_basic_block(f"case{value}"))
        b.position_at_end(b.function.blocks[-1])
        write()
        b.branch(after)
    b.position_at_end(after)


@intrinsic
def multiply(
    typing: Context, kind: Value, rows: Value, a: Value, a_stride: Value, w: Value, steps: Value, out: Value,
    out_stride: Value,
    ahead: Value, ahead_step: Value,
) -> Value:  # fmt: skip
    """Multiply a tile of up to ROWS rows of activations with COLUMNS columns of a weight; strides are in bytes.

    out    address of the result, (rows, COLUMNS) numbers of 32 bits
    a      address of the activations, 4 * steps bytes per row
    w      address of the weights, contiguous (steps, COLUMNS) times 4 bytes
    ahead  first address to prefetch. Each step prefetches COLUMNS words, `ahead_step` bytes after the previous step
    """
    # The function `lower` has already rejected other precisions.
    kinds = [FLOAT32, *([BF16] if HAS_BF16 else []), *([INT8] if HAS_INT8 else [])]

    def write(context: Context, b: Builder, signature: Value, arguments: Value) -> Value:
        kind, rows, *rest = arguments
        loops = {ROWS * k + r: partial(_write_loop, b, k, r, *rest) for k in kinds for r in range(1, ROWS + 1)}
        switch(b, b.add(b.mul(kind, _INT64(ROWS)), rows), loops)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 10), write


def _prefetch(b: Builder, address: Value) -> None:
    """Generate a prefetch instruction: load the cache line at an address in advance. The address may be invalid."""
    kinds = [_INT8.as_pointer(), _INT32, _INT32, _INT32]
    fetch = b.module.declare_intrinsic("llvm.prefetch.p0", (), ir.FunctionType(ir.VoidType(), kinds))
    b.call(
        fetch, [b.inttoptr(address, kinds[0]), _INT32(0), _INT32(2), _INT32(1)]
    )  # arguments of LLVM's prefetch: read access, L2 cache, data


def _write_loop(
    b: Builder, kind: int, rows: int, a: Value, a_stride: Value, w: Value, steps: Value, out: Value, stride: Value,
    ahead: Value,
    ahead_step: Value,
) -> None:  # fmt: skip
    name, accumulator, factor = _instruction(kind)
    multiply = b.module.declare_intrinsic(name, (), ir.FunctionType(accumulator, [accumulator, factor, factor]))
    lanes = ir.VectorType(_INT32, LANES)

    def at(address: Value, offset: Value, kind_at: Value) -> Value:
        return b.inttoptr(b.add(address, offset), kind_at.as_pointer())

    before = b.block
    loop, after = b.append_basic_block("loop"), b.append_basic_block("after")
    starts = [b.add(a, b.mul(a_stride, _INT64(row))) for row in range(rows)]
    b.branch(loop)
    b.position_at_end(loop)
    step = b.phi(_INT64)
    sums = [[b.phi(accumulator) for _ in range(VECTORS)] for _ in range(rows)]
    offset = b.mul(step, _INT64(4 * COLUMNS))
    weights = [b.load(at(b.add(w, offset), _INT64(4 * LANES * i), factor), align=4) for i in range(VECTORS)]
    prefetch_at = b.add(ahead, b.mul(step, ahead_step))
    for i in range(VECTORS):
        _prefetch(b, b.add(prefetch_at, _INT64(4 * LANES * i)))
    added = []
    for row in range(rows):
        four_bytes = b.load(at(starts[row], b.mul(step, _INT64(4)), _INT32), align=4)
        one = b.insert_element(ir.Constant(lanes, ir.Undefined), four_bytes, _INT32(0))
        activation = b.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), ir.Constant(lanes, [0] * LANES))
        activation = b.bitcast(activation, factor)
        added.append(
            [
                b.call(multiply, [activation, weight, total] if kind == FLOAT32 else [total, activation, weight])
                for weight, total in zip(weights, sums[row], strict=True)
            ]
        )
    following = b.add(step, _INT64(1))
    step.add_incoming(_INT64(0), before)
    step.add_incoming(following, loop)
    for row in range(rows):
        for total, result in zip(sums[row], added[row], strict=True):
            total.add_incoming(ir.Constant(accumulator, None), before)
            total.add_incoming(result, loop)
    b.cbranch(b.icmp_signed("<", following, steps), loop, after)
    b.position_at_end(after)
    for row in range(rows):
        for i, result in enumerate(added[row]):
            b.store(result, at(b.add(out, b.mul(stride, _INT64(row))), _INT64(4 * LANES * i), accumulator), align=4)


def _make_gather(mixes: bool) -> Callable[..., None]:
    """Return a Numba intrinsic that computes attention of one query in one head, with keys at scattered addresses.

    The head has vectors * LANES numbers. `mixes` selects one of two intrinsics: False for scores, True for mix.

    scores(vectors, halves, q, keys, slots, slot_step, slot, step, count, out, ahead): the dot products of q with keys
    mix(vectors, halves, weights, values, ...): the sum of the values times their weights

    Position s is slots[s] * slot + s * step bytes after `keys`. The 64-bit entries of slots are `slot_step` bytes
    apart, 8 or 0. The data `ahead` bytes after each read is prefetched. If `halves` is 1, keys and values are bf16,
    otherwise float32; all other numbers are float32. `vectors` is one of WIDTHS.
    """

    @intrinsic
    def gather(
        typing: Context, vectors: Value, halves: Value, given: Value, vectors_at: Value, slots: Value,
        slot_step: Value, slot: Value,
        step: Value, count: Value, out: Value, ahead: Value,
    ) -> Value:  # fmt: skip
        def write(context: Context, b: Builder, signature: Value, arguments: Value) -> Value:
            vectors, halves, *rest = arguments
            loops = {
                2 * v + half: partial(_write_gather, b, v, mixes, bool(half), *rest) for v in WIDTHS for half in (0, 1)
            }
            switch(b, b.add(b.mul(vectors, _INT64(2)), halves), loops)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 11), write

    return gather


def _write_gather(
    b: Builder, vectors: int, mixes: bool, halves: bool, given: Value, vectors_at: Value, slots: Value,
    slot_step: Value, slot: Value,
    step: Value, count: Value, out: Value, ahead: Value,
) -> None:  # fmt: skip
    floats, whole = ir.VectorType(_FLOAT32, LANES), ir.VectorType(_INT32, LANES)
    fma = b.module.declare_intrinsic(f"llvm.fma.v{LANES}f32", (), ir.FunctionType(floats, [floats] * 3))
    reduce_add = b.module.declare_intrinsic(
        f"llvm.vector.reduce.fadd.v{LANES}f32", (), ir.FunctionType(_FLOAT32, [_FLOAT32, floats])
    )

    def at(address: Value, kind_at: Value) -> Value:
        return b.inttoptr(address, kind_at.as_pointer())

    def vector(address: Value, i: int) -> Value:
        return b.load(at(b.add(address, _INT64(4 * LANES * i)), floats), align=4)

    def stored(address: Value, i: int) -> Value:
        if not halves:
            return vector(address, i)
        short = b.load(at(b.add(address, _INT64(2 * LANES * i)), ir.VectorType(_INT16, LANES)), align=2)
        return b.bitcast(b.shl(b.zext(short, whole), ir.Constant(whole, [16] * LANES)), floats)

    query = [] if mixes else [vector(given, i) for i in range(vectors)]
    before = b.block
    loop, after = b.append_basic_block("positions"), b.append_basic_block("done")
    b.branch(loop)
    b.position_at_end(loop)
    position = b.phi(_INT64)
    sums = [b.phi(floats) for _ in range(vectors)] if mixes else []
    where = b.load(at(b.add(slots, b.mul(position, slot_step)), _INT64))
    address = b.add(vectors_at, b.add(b.mul(where, slot), b.mul(position, step)))
    offset = b.mul(position, _INT64(4))
    for line in range(0, vectors * LANES * (2 if halves else 4), LINE):
        _prefetch(b, b.add(b.add(address, ahead), _INT64(line)))
    if mixes:
        one = b.insert_element(ir.Constant(floats, ir.Undefined), b.load(at(b.add(given, offset), _FLOAT32)), _INT32(0))
        weight = b.shuffle_vector(one, ir.Constant(floats, ir.Undefined), ir.Constant(whole, [0] * LANES))
        for i, total in enumerate(sums):
            mixed = b.call(fma, [weight, stored(address, i), total])
            total.add_incoming(ir.Constant(floats, None), before)
            total.add_incoming(mixed, loop)
            sums[i] = mixed
    else:
        dot = b.fmul(query[0], stored(address, 0))
        for i in range(1, vectors):
            dot = b.call(fma, [query[i], stored(address, i), dot])
        score = b.call(reduce_add, [ir.Constant(_FLOAT32, 0.0), dot], fastmath=("reassoc",))
        b.store(score, at(b.add(out, offset), _FLOAT32))
    following = b.add(position, _INT64(1))
    position.add_incoming(_INT64(0), before)
    position.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, count), loop, after)
    b.position_at_end(after)
    for i, total in enumerate(sums):
        b.store(total, at(b.add(out, _INT64(4 * LANES * i)), floats), align=4)


scores, mix = _make_gather(mixes=False), _make_gather(mixes=True)


@intrinsic
def float_of(typing: Context, bits: Value) -> Value:
    """Return the float32 number that these 32 bits represent."""
    return types.float32(types.int32), lambda context, b, signature, given: b.bitcast(given[0], _FLOAT32)


@intrinsic
def bits_of(typing: Context, number: Value) -> Value:
    """Return the 32 bits that represent a float32 number."""
    return types.int32(types.float32), lambda context, b, signature, given: b.bitcast(given[0], _INT32)


@intrinsic
def to_bf16(typing: Context, number: Value) -> Value:
    """Round a float32 number to the 16 bits of bf16, to nearest even."""

    def write(context: Context, b: Builder, signature: Value, given: Value) -> Value:
        if HAS_BF16:
            return b.bitcast(b.fptrunc(given[0], _BFloat16()), _INT16)
        bits = b.bitcast(given[0], _INT32)
        even = b.and_(b.lshr(bits, _INT32(16)), _INT32(1))
        return b.trunc(b.lshr(b.add(bits, b.add(even, _INT32(0x7FFF))), _INT32(16)), _INT16)

    return types.uint16(types.float32), write


@intrinsic
def pointer(typing: Context, address: Value) -> Value:
    """Return an address as the pointer type that `numba.carray` expects."""
    return types.voidptr(types.intp), lambda context, b, signature, given: b.inttoptr(given[0], _INT8.as_pointer())


@intrinsic
def arrive(typing: Context, counter: Value) -> Value:
    """Add 1 to the 64-bit counter at this address, atomically."""

    def write(context: Context, b: Builder, signature: Value, given: Value) -> Value:
        b.atomic_rmw("add", b.inttoptr(given[0], _INT64.as_pointer()), _INT64(1), "acq_rel")
        return context.get_dummy_value()

    return types.void(types.intp), write


@intrinsic
def arrived(typing: Context, counter: Value) -> Value:
    """Return the value of the 64-bit counter at this address."""

    def write(context: Context, b: Builder, signature: Value, given: Value) -> Value:
        return b.load_atomic(b.inttoptr(given[0], _INT64.as_pointer()), "acquire", 8)

    return types.int64(types.intp), write
