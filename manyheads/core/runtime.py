"""Configuration of the computation in a run: device, threads, precision, float32 kernels, compilation and memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from manyheads.core.config import PRECISIONS, TRAINING_PRECISIONS, Precision
from manyheads.errors import UserError
from manyheads.files import JsonObject

R = TypeVar("R")

logger = logging.getLogger(__name__)

MAX_THREADS = 1024  # maximum number of threads; PyTorch crashes the process at 100,000
# A speed is measured for at least this number of seconds, so that the time to start a kernel is negligible.
BUSY_SECONDS = 0.005
# constants of the function mallopt(), defined in glibc's malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
MAX_GROWTH = 1.5

_lock = threading.Lock()
_SMALLEST = sys.float_info.min  # the smallest positive number that is not denormal
# PyTorch's settings before any configuration was applied, once for each configuration that is currently applied.
_original_settings: list[tuple[int, str, bool]] = []


@dataclass(frozen=True)
class ComputeConfig:
    """Configuration of the computation in a run: device, precision, threads and kernels.

    Two runs with the same configuration are bit-identical.

    device     "cpu", "cuda", or a GPU by its number, such as "cuda:1"
    precision  "float32", or "bf16": autocast of the matrix products to bfloat16, while weights stay float32. A loaded
               model also accepts "int8" and "auto" (see `manyheads.inference`).
    threads    number of PyTorch threads on the CPU. By default, the current setting of the process
    matmul     torch's float32 matmul precision. On a CPU, "medium" uses oneDNN, not MKL: twice as fast on
               AMD's processors with AVX-512, slower on other processors, and real bf16 with AMX. On a GPU, "high" is
               TF32 with 10 of 23 mantissa bits.
    """

    device: str
    precision: Precision
    threads: int | None
    matmul: str
    compiled: bool

    @property
    def device_type(self) -> str:
        """Return "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Apply the number of threads and the float32 kernels during the `with` block, then restore the old settings.

        They apply to the whole process. If several threads use different configurations, a thread may run with the
        settings of another. The last thread to leave its block restores the original values. In this thread, numbers
        below 1e-38 are rounded to zero in the block.
        """
        with _lock:
            threads, _, tf32 = before = _current_settings()
            _original_settings.append(_original_settings[0] if _original_settings else before)
            _apply_settings(
                self.threads or threads, self.matmul, self.matmul != "highest" if self.device_type == "cuda" else tf32
            )
        try:
            with _rounded_denormals():
                yield
        finally:
            with _lock:
                original = _original_settings.pop()
                _apply_settings(*(before if _original_settings else original))

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """Apply `settings`, and autocast to bf16 if the precision is bf16, while the `with` block runs.

        Every forward pass runs in this context.
        """
        with self.settings(), torch.autocast(self.device_type, torch.bfloat16, enabled=self.precision == "bf16"):
            yield

    def compile(self, function: Callable[..., R]) -> Callable[..., R]:
        """Return the given function, compiled with torch.compile if this is configured.

        On a CPU, compilation needs a C++ compiler.
        """
        return torch.compile(function, dynamic=True) if self.compiled else function

    def describe(self) -> JsonObject:
        """Return a description of the machine, which is saved in every checkpoint.

        A resumed run is bit-identical only with the same configuration, PyTorch version and processor.
        """
        threads = self.threads or torch.get_num_threads()
        return {**asdict(self), "threads": threads, "torch": torch.__version__, "processor": processor()}

    def products_per_second(self) -> float:
        """Return the FLOP/s that this machine reaches in matrix products of the configured precision.

        Measures products of 1024 x 1024 matrices, each repeated for a minimum time. If a product of this size does not
        keep the device busy, larger matrices are measured, too.
        """
        dtype, best = torch.bfloat16 if self.precision == "bf16" else torch.float32, 0.0

        def seconds(a: Tensor, times: int) -> float:
            start = time.perf_counter()
            for _ in range(times):
                product = a @ a
            product[0, 0].item()  # Copying the result to the CPU waits for an asynchronous device.
            return (time.perf_counter() - start) / times

        with self.settings():
            for size in (1024, 2048, 4096):
                a = torch.ones(size, size, device=self.device, dtype=dtype)
                once = min(seconds(a, 1) for _ in range(3))
                fastest = min(seconds(a, max(1, round(BUSY_SECONDS / once))) for _ in range(3))
                best = max(best, 2 * size**3 / fastest)
                if once > BUSY_SECONDS:
                    break
        return best


def prepare(
    precision: Precision = "float32", threads: int | None = None, compile: bool = False, device: str | None = None
) -> ComputeConfig:
    """Return a compute configuration with the device, precision and threads resolved.

    The default device is a GPU if present.
    """
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UserError(f"threads is {threads}: expected 1 to {MAX_THREADS:,}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if compile and device == "cpu":
        _check_compiler()
    if precision == "bf16" and device == "cpu" and not is_bf16_faster(threads):
        weakness = "is not faster in bf16" if torch.cpu._is_avx512_bf16_supported() else "has no bf16 instructions"
        logger.warning(f"this processor {weakness}: precision bf16 will be slower than float32")
    return ComputeConfig(device, precision, threads, _matmul(device, precision), compile)


@functools.cache
def is_bf16_faster(threads: int | None = None) -> bool:
    """Return True if this processor multiplies matrices faster in bf16 than in float32.

    Hardware support is not sufficient: a processor with AVX512-BF16 but without access to AMX reached 172 GFLOP/s in
    bf16 and 305 in float32. The first call with a given number of threads measures both.
    """
    if not torch.cpu._is_avx512_bf16_supported():
        return False
    configs = (
        ComputeConfig("cpu", precision, threads, _matmul("cpu", precision), False) for precision in TRAINING_PRECISIONS
    )
    float32, bf16 = (compute.products_per_second() for compute in configs)
    return bf16 > float32


BUFFER_BYTES = 2**28  # buffer size in bytes, larger than the cache of a few CPU cores
CACHED = 2**25  # size in bytes of data that stays in the CPU cache


def bytes_per_second(threads: int | None = None, size: int = BUFFER_BYTES) -> float:
    """Return the speed of memory reads by this processor, in bytes per second.

    Reads a buffer of `size` bytes five times with this number of threads, and returns the highest speed.
    """
    with prepare(threads=threads, device="cpu").settings():
        memory = torch.ones(size // 4)
        memory.sum()

        def seconds() -> float:
            start = time.perf_counter()
            memory.sum()
            return time.perf_counter() - start

        return size / min(seconds() for _ in range(5))


def _check_compiler() -> None:
    """Raise UserError if the C++ compiler or Python's headers are missing, which torch.compile needs on a CPU."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(compiler) is None:
        raise UserError(
            f"compilation needs a C++ compiler, but {compiler} was not found: install it, or do not compile"
        )
    if not header.is_file():
        raise UserError(
            f"compilation needs Python's headers, but {header} does not exist: install them, or do not compile"
        )


def check_device(device: str) -> None:
    """Raise UserError if this machine lacks the device."""
    gpus = ["cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    known = ["cpu", *(gpus if torch.cuda.is_available() else [])]
    if device not in known:
        raise UserError(f"device is {device!r}: expected {' or '.join(known)} on this machine")


def _matmul(device: str, precision: Precision) -> str:
    """Return the fastest setting of torch's float32 matmul precision that still rounds as float32 does.

    The choice depends on the features of the processor and not on a measurement, because two runs on one machine must
    be identical.
    """
    only_avx512 = torch.cpu._is_avx512_supported() and not torch.cpu._is_amx_tile_supported()
    # MKL uses AVX-512 on Intel's processors only.
    if device == "cpu" and only_avx512 and "Intel" not in processor():
        return "medium"
    return "high" if device.startswith("cuda") and precision == "bf16" else "highest"


@contextlib.contextmanager
def _rounded_denormals() -> Iterator[None]:
    """Round denormal numbers to zero in this thread during the `with` block.

    Processors compute with numbers below 1e-38 slowly. Without them, an LSTM of 5 million parameters is trained up to
    3.3 times as fast after 1,700 steps, with the same losses. A thread that PyTorch starts in the block keeps the
    setting.
    """
    was_rounded = _SMALLEST / 2 == 0.0  # The setting of the processor applies to Python's numbers, too.
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if not was_rounded:
            torch.set_flush_denormal(False)


def _current_settings() -> tuple[int, str, bool]:
    return torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def _apply_settings(threads: int, matmul: str, tf32: bool) -> None:
    """Set PyTorch's number of threads and its float32 kernels.

    matmul  PyTorch's float32 matmul precision
    tf32    True to allow TF32 for convolutions on a GPU
    """
    # Setting the number of threads takes time in PyTorch even if the number does not change.
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = tf32


@contextlib.contextmanager
def retain_memory(*, low_memory: bool = False) -> Iterator[Callable[[], None]]:
    """Keep freed memory in the process during the `with` block, because the next training step needs the same amount.

    By default the C library returns a large block to the system as soon as it is freed, and the system clears every
    page of the next block. This takes 20% of a training step of BERT base. Only glibc is supported; other C libraries
    are not changed.

    low_memory  True for a model that hardly fits into memory: blocks of 8 MiB or more, such as weights gathered from
                other ranks, are returned to the system at once

    Yields a function that the caller runs after each step. Blocks of many sizes fragment the memory, so that a process
    would grow for hours. The function returns free memory to the system when the process holds `MAX_GROWTH` times its
    baseline. The baseline is the memory that the process held after the first step, or after the first step that
    followed the last return of memory.
    """
    libc = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
    if libc is None:
        yield lambda: None
        return
    if low_memory:
        # With an explicit threshold, glibc does not raise the threshold when blocks are freed.
        libc.mallopt(M_MMAP_THRESHOLD, 2**23)
    else:
        libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)
    baseline = 0

    def trim() -> None:
        nonlocal baseline
        in_use = resident_memory()
        if baseline == 0:
            baseline = in_use
        elif in_use > MAX_GROWTH * baseline:
            libc.malloc_trim(0)
            baseline = 0

    try:
        yield trim
    finally:  # set the thresholds to the maximum values of glibc's automatic adaptation
        libc.mallopt(M_MMAP_MAX, 65_536)
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        libc.mallopt(M_TRIM_THRESHOLD, 64 * 2**20)
        libc.malloc_trim(0)


def processor() -> str:
    """Return the name of the processor that the operating system reports."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def resident_memory() -> int:
    """Return the resident memory of this process in bytes, or 0 if the system does not report it."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


def physical_memory() -> int:
    """Return the physical memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradients during the `with` block, then restore the training or eval mode of the model."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
