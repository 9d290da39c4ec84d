"""Compilation of kernels to object code with Numba."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from manyheads.inference.kernels.llvm import Builder, Context, Value
from manyheads.inference.kernels.operations import kernel

WORD = ir.IntType(64)


def compile_kernel(name: str, arguments: Iterable[Value]) -> bytes:
    """Return the object code of a kernel for the types of the given arguments.

    The code is preceded by a line with the name of the function and the names of the external functions that it calls.
    The function returns a status, which is 0 without an error. Its arguments are the addresses of a result and of an
    error, the numbers `thread`, `threads` and `counter`, and the address of the words that `compiled.Kernel` writes.
    """
    module, _, function = name.partition(".")
    body = getattr(import_module(f"{__package__}.{module}"), function)
    kinds = types.Tuple([numba.typeof(argument) for argument in arguments])

    @intrinsic
    def read(typing: Context, address: Value) -> Value:
        def write(context: Context, b: Builder, signature: Value, given: Value) -> Value:
            return _read(context, b, kinds, _loads(b, given[0]))

        return kinds(types.int64), write

    @kernel
    def entry(thread: int, threads: int, counter: int, address: int) -> None:
        body(thread, threads, counter, *read(address))

    entry.compile((types.int64,) * 4)
    (compiled,) = entry.overloads.values()
    declared = re.findall(r"^declare [^@]*@([\w.$]+)\(", compiled.library.get_llvm_str(), re.MULTILINE)
    external = [other for other in declared if not other.startswith("llvm.")]
    _, _, (objects, _) = compiled.library.serialize_using_object_code()
    return " ".join([compiled.fndesc.llvm_func_name, *external]).encode() + b"\n" + objects


def _loads(b: Builder, address: Value) -> Iterator[Value]:
    """Yield the consecutive 64-bit words in memory from an address on, as LLVM values."""
    while True:
        yield b.load(b.inttoptr(address, WORD.as_pointer()))
        address = b.add(address, WORD(8))


def _read(context: Context, b: Builder, kind: Value, words: Iterator[Value]) -> Value:
    """Return the LLVM value of one kernel argument from the next words. Arrays are read from NumPy's array objects."""
    if isinstance(kind, types.BaseTuple):
        return context.make_tuple(b, kind, [_read(context, b, part, words) for part in kind])
    if not isinstance(kind, types.Array):
        return context.cast(b, next(words), types.int64, kind)
    assert kind.layout == "C"
    # NumPy's C interface defines the first fields of an array object: data, number of dimensions, dimensions.
    fields = _loads(b, b.add(next(words), WORD(object.__basicsize__)))
    data, _, dimensions = (next(fields) for _ in range(3))
    lengths = _loads(b, dimensions)
    shape = [next(lengths) for _ in range(kind.ndim)]
    size = WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [size]
    for length in reversed(shape[1:]):
        strides.insert(0, b.mul(strides[0], length))
    result = context.make_array(kind)(context, b)
    populate_array(result, b.inttoptr(data, result.data.type), shape, strides, size, None)
    return result._getvalue()
