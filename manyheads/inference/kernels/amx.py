"""Matrix products on the tile registers of AMX, generated as LLVM code.

A tile register holds 16 rows of 64 bytes. One instruction multiplies 16 rows of activations with 16 columns of a
weight matrix, 16 steps at once, in bf16 or 8 bits. The weights have the memory layout of `tile.py`.
"""

from __future__ import annotations

from functools import partial

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from manyheads.inference.kernels.llvm import Builder, Context, Value
from manyheads.inference.kernels.processor import AMX_ROWS, AMX_STEPS, BF16, COLUMNS, INT8, LINE
from manyheads.inference.kernels.tile import switch

PREFIX = "llvm.x86."  # prefix of the AMX instructions' names in LLVM; tests replace the instructions by functions
_INT8, _INT64 = ir.IntType(8), ir.IntType(64)


@intrinsic
def multiply(
    typing: Context, kind: Value, rows: Value, a: Value, a_stride: Value, w: Value, steps: Value, out: Value,
    out_stride: Value
) -> Value:  # fmt: skip
    """Multiply up to AMX_ROWS rows of activations with 32 columns of a weight, in bf16 or 8 bits, on tile registers.

    The arguments are those of `tile.multiply`. `steps` is a multiple of AMX_STEPS.
    """

    def write(context: Context, b: Builder, signature: Value, arguments: Value) -> Value:
        kind, rows, *rest = arguments
        _instruction(b, "ldtilecfg", b.add(_tile_shapes(b), b.mul(rows, _INT64(LINE))))
        has_second = b.zext(b.icmp_signed(">", rows, _INT64(AMX_ROWS // 2)), _INT64)
        loops = {
            2 * k + tiles - 1: partial(_write_loop, b, name, tiles, *rest)
            for k, name in ((BF16, "tdpbf16ps"), (INT8, "tdpbusd"))
            for tiles in (1, 2)
        }
        switch(b, b.add(b.mul(kind, _INT64(2)), has_second), loops)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 8), write


@intrinsic
def release(typing: Context) -> Value:
    """Reset the tile registers of this thread. The system then no longer saves them when it switches threads."""

    def write(context: Context, b: Builder, signature: Value, arguments: Value) -> Value:
        _instruction(b, "tilerelease")
        return context.get_dummy_value()

    return types.void(), write


def _instruction(b: Builder, name: str, *arguments: Value) -> None:
    """Generate an AMX instruction.

    arguments  numbers of tile registers (int), or an address and the distance of rows in memory (LLVM values)
    """
    given = [_INT8(value) if isinstance(value, int) else value for value in arguments]
    at = next((i for i, value in enumerate(arguments) if not isinstance(value, int)), None)
    if at is not None:
        given[at] = b.inttoptr(given[at], _INT8.as_pointer())
    kinds = [value.type for value in given]
    b.call(b.module.declare_intrinsic(PREFIX + name, (), ir.FunctionType(ir.VoidType(), kinds)), given)


def _tile_shapes(b: Builder) -> Value:
    """Return the address of a table with the configuration of the tile registers (64 bytes) for each number of rows.

    Tiles 0 to 3 contain sums, tiles 4 and 5 contain up to 16 rows of activations each, and tiles 6 and 7 contain 16
    columns of the weight matrix each.
    """
    name = "manyheads.tile_shapes"
    if name not in b.module.globals:
        table = bytearray()
        for rows in range(AMX_ROWS + 1):
            first, second = min(rows, AMX_ROWS // 2), max(0, rows - AMX_ROWS // 2)
            heights = (first, first, second, second, first, second, AMX_STEPS, AMX_STEPS)
            shape = bytearray(LINE)
            shape[0] = 1  # palette
            for number, height in enumerate(heights):
                shape[16 + 2 * number] = LINE if height else 0  # bytes in a row
                shape[48 + number] = height
            table += shape
        constant = ir.Constant(ir.ArrayType(_INT8, len(table)), table)
        shapes = ir.GlobalVariable(b.module, constant.type, name)
        shapes.initializer, shapes.global_constant, shapes.linkage = constant, True, "internal"
    return b.ptrtoint(b.module.globals[name], _INT64)


def _write_loop(
    b: Builder, name: str, tiles: int, a: Value, a_stride: Value, w: Value, steps: Value, out: Value, out_stride: Value
) -> None:
    """Generate the loop over the steps of a product for one or two tiles of rows.

    The sums are already zero, because the instruction `ldtilecfg` clears the tile registers.
    """
    before = b.block
    loop, after = b.append_basic_block("loop"), b.append_basic_block("after")
    b.branch(loop)
    b.position_at_end(loop)
    step = b.phi(_INT64)
    left, weights = b.add(a, b.mul(step, _INT64(4))), b.add(w, b.mul(step, _INT64(4 * COLUMNS)))
    for u in range(2):
        _instruction(b, "tileloadd64", 6 + u, b.add(weights, _INT64(LINE * u)), _INT64(4 * COLUMNS))
    for t in range(tiles):
        _instruction(b, "tileloadd64", 4 + t, b.add(left, b.mul(a_stride, _INT64(16 * t))), a_stride)
        for u in range(2):
            _instruction(b, name, 2 * t + u, 4 + t, 6 + u)
    following = b.add(step, _INT64(AMX_STEPS))
    step.add_incoming(_INT64(0), before)
    step.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, steps), loop, after)
    b.position_at_end(after)
    for t in range(tiles):
        for u in range(2):
            address = b.add(b.add(out, _INT64(LINE * u)), b.mul(out_stride, _INT64(16 * t)))
            _instruction(b, "tilestored64", 2 * t + u, address, out_stride)
