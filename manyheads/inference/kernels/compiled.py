"""Compiled kernels as Python functions. Their machine code is stored on disk and loaded without Numba.

The import of Numba and of its type registries takes most of a second, so only `compiling.py` and the modules with the
source code of the kernels import it.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from manyheads.files import WriteError, fingerprint, write
from manyheads.inference.kernels import processor
from manyheads.inference.kernels.processor import binding

logger = logging.getLogger(__name__)

# Numba's function that frees the memory of an array. The arrays of kernels do not own memory, so it is never called.
UNUSED = "NRT_MemInfo_call_dtor"


class Kernel:
    """Compiled kernel that can be called from Python: kernel(thread, threads, counter, *arguments).

    The arguments are numbers, arrays in C order, and tuples of them. Their types are the same in all calls.

    name  name of the module in this package and of the function in it, such as "fused.run"
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._call: Callable[..., int] | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._reset)

    def __call__(self, thread: int, threads: int, counter: int, *arguments: Any) -> None:
        if self._call is None:
            with self._lock:
                self._call = self._call or self._load(arguments)
        # Numba's functions write their result and their error to the addresses in the first two words.
        words = array("q", (0, 0, *_words(arguments)))
        at, _ = words.buffer_info()
        if status := self._call(at, at + 8, thread, threads, counter, at + 16):
            raise RuntimeError(f"kernel {self.name} failed with status {status}")

    def _load(self, arguments: Iterable[Any]) -> Callable[..., int]:
        file = cache_directory() / f"{self.name}-{source_version()}"
        code = _read(file)
        if code is None:
            _log_compilation()
            from manyheads.inference.kernels.compiling import compile_kernel

            code = compile_kernel(self.name, arguments)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write(file, hashlib.sha256(code).digest() + code)
            except (OSError, WriteError) as error:
                logger.info(f"compiled kernels are not stored: {error}")
        return _link(code)

    def _reset(self) -> None:
        """Release the lock in a process created by fork, because another thread may have held it."""
        self._lock = threading.Lock()


def _words(arguments: Iterable[Any]) -> Iterator[int]:
    """Yield the 64-bit words that the machine code reads: numbers, and the addresses of array objects."""
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            yield id(argument)
        elif isinstance(argument, tuple):
            yield from _words(argument)
        else:
            yield int(argument)


def source_version() -> str:
    """Return a fingerprint of everything that determines the machine code: source code, processor and versions."""
    constants = [(name, value) for name, value in vars(processor).items() if name.isupper()]
    names = [os.environ.get(name) for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    machine = (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), sys.platform, *names)
    versions = (version("numba"), version("llvmlite"), object.__basicsize__)
    return fingerprint([_sources(), repr((constants, machine, versions))])


@cache
def _sources() -> str:
    """Return a fingerprint of the modules in this folder. No other module changes the machine code."""
    return fingerprint(sorted(Path(__file__).parent.glob("*.py")))


def cache_directory() -> Path:
    """Return the directory of compiled kernels.

    The environment variables NUMBA_CACHE_DIR and XDG_CACHE_HOME change its location.
    """
    caches = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "manyheads" / "kernels"


@cache
def _log_compilation() -> None:
    logger.info("compiling kernels for this processor (once, about 20 seconds)")


def _read(file: Path) -> bytes | None:
    """Return the content of a file without its checksum, or None if the file is missing or damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    return content[32:] if hashlib.sha256(content[32:]).digest() == content[:32] else None


@cache
def _engine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def _link(code: bytes) -> Callable[..., int]:
    """Load object code into this process and return its function.

    code  line with the name of the function and the names of the external functions that it calls, then object code
    """
    names, _, objects = code.partition(b"\n")
    function, *external = names.decode().split()
    engine = _engine()
    if UNUSED in external and not binding.address_of_symbol(UNUSED):
        binding.add_symbol(UNUSED, binding.address_of_symbol("abort"))
    if not all(binding.address_of_symbol(name) for name in external):
        from numba.core.registry import cpu_target

        assert cpu_target.target_context  # Access to this attribute registers Numba's own functions with LLVM.
    engine.add_object_file(binding.ObjectFileRef.from_data(objects))
    kinds = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 4
    return ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(engine.get_function_address(function))
