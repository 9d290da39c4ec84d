"""How to run: threads, precision, the float32 route, compilation. The only place that knows the machine."""

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
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.core.config import PRECISIONS, TRAINING_PRECISIONS, Precision
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

MOST_THREADS = 1024  # 100,000 end the process
BUSY = 0.005  # seconds of products that are long beside the start of one
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
MOST_HELD = 1.5

_guard = threading.Lock()
_own: list[tuple[int, str, bool]] = []  # the process's own settings, once for each route in force


@dataclass(frozen=True)
class ComputeConfig:
    """The way through the kernels that a run takes. Two runs on the same route give the same bits.

    precision  "float32", or "bf16": autocast of the matrix products to bfloat16, weights stay float32; for a loaded
               model also "int8" and "auto" (see `manyheads.inference`)
    threads    of PyTorch on the CPU; None: as many as the process has
    matmul     torch's float32 matmul precision. On a CPU "medium" sends products through oneDNN: twice as fast as the
               default where there is AVX-512, slower where there is not, and real bf16 where there is AMX. On a GPU
               "high" is TF32, which keeps 10 of 23 bits.
    lowered    the precision of fused kernels, which are no concern of autocast; None without them
    """

    device: str
    precision: Precision
    threads: int | None
    matmul: str
    compiled: bool
    lowered: Precision | None = None

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """The process's threads and float32 kernels as the route wants them, and then as they were.

        They hold for the whole process: where several threads compute on different routes, those of one may be in
        force for another. The last to leave brings back what was there before the first.
        """
        with _guard:
            threads, _, tf32 = before = _settings()
            _own.append(_own[0] if _own else before)
            _set(self.threads or threads, self.matmul, self.matmul != "highest" if self.device == "cuda" else tf32)
        try:
            yield
        finally:
            with _guard:
                own = _own.pop()
                _set(*(before if _own else own))

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        """`settings`, and autocast where the precision is bf16: what every forward pass runs in."""
        with self.settings(), torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16"):
            yield

    def compile(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function, compiled where the route asks for it (needs a C++ compiler on the CPU)."""
        return torch.compile(function, dynamic=True) if self.compiled else function

    def describe(self) -> dict[str, Any]:
        """What a checkpoint keeps: a resumed run is bit-exact on the same route, torch and processor."""
        threads = self.threads or torch.get_num_threads()
        compute = {name: value for name, value in asdict(self).items() if name != "lowered"}  # no part of training
        return {**compute, "threads": threads, "torch": torch.__version__, "processor": processor()}

    def products_per_second(self) -> float:
        """FLOP/s that this machine reaches in products of the route's precision: of two matrices 1024 x 1024, or of
        larger ones and of several in a row where it is done with those before it is fully busy."""
        dtype, best = torch.bfloat16 if self.precision == "bf16" else torch.float32, 0.0

        def seconds(a: Tensor, times: int) -> float:
            start = time.perf_counter()
            for _ in range(times):
                product = a @ a
            product[0, 0].item()  # waits for a device that works asynchronously
            return (time.perf_counter() - start) / times

        with self.settings():
            for size in (1024, 2048, 4096):
                a = torch.ones(size, size, device=self.device, dtype=dtype)
                once = min(seconds(a, 1) for _ in range(3))
                fastest = min(seconds(a, max(1, round(BUSY / once))) for _ in range(3))
                best = max(best, 2 * size**3 / fastest)
                if once > BUSY:
                    break
        return best


def prepare(
    precision: Precision = "float32", threads: int | None = None, compile: bool = False, device: str | None = None
) -> ComputeConfig:
    """Choose device, precision and threads; `ComputeConfig.autocast` applies them. Defaults to a GPU if present."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: valid are {', '.join(PRECISIONS)}")
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UserError(f"threads is {threads}: expected 1 to {MOST_THREADS:,}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if compile and device == "cpu":
        _check_compiler()
    if precision == "bf16" and device == "cpu" and not bf16_pays(threads):
        lacks = "multiplies no faster in bf16" if torch.cpu._is_avx512_bf16_supported() else "has no bf16 products"
        logger.warning(f"this processor {lacks}: precision bf16 will be slower here than float32")
    return ComputeConfig(device, precision, threads, _matmul(device, precision), compile)


@functools.cache
def bf16_pays(threads: int | None = None) -> bool:
    """Whether this processor multiplies faster in bf16 than in float32. Not each that can does: one with AVX512-BF16,
    whose AMX the system hid, did 172 and 305 GFLOP/s. The first call with so many threads measures both."""
    if not torch.cpu._is_avx512_bf16_supported():
        return False
    routes = (
        ComputeConfig("cpu", precision, threads, _matmul("cpu", precision), False) for precision in TRAINING_PRECISIONS
    )
    float32, bf16 = (compute.products_per_second() for compute in routes)
    return bf16 > float32


BUFFER = 2**28  # bytes: more than what a few cores find in their cache
CACHED = 2**25  # bytes that they do find there


def bytes_per_second(threads: int | None = None, size: int = BUFFER) -> float:
    """The rate at which a processor with so many threads reads so many bytes again and again, the best of five."""
    with prepare(threads=threads, device="cpu").settings():
        memory = torch.ones(size // 4)
        memory.sum()

        def seconds() -> float:
            start = time.perf_counter()
            memory.sum()
            return time.perf_counter() - start

        return size / min(seconds() for _ in range(5))


def _check_compiler() -> None:
    """Raises UserError where there is not what PyTorch compiles with on a CPU."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which(compiler) is None:
        raise UserError(f"compiling needs a C++ compiler, and there is no {compiler}: install it, or do not compile")
    if not header.is_file():
        raise UserError(f"compiling needs Python's headers, and there is no {header}: install them, or do not compile")


def _matmul(device: str, precision: Precision) -> str:
    """The fastest kernels for float32 products that still round as float32 does.

    By what the processor has, not by a stopwatch: two runs on one machine must take the same route.
    """
    if device == "cpu" and torch.cpu._is_avx512_supported() and not torch.cpu._is_amx_tile_supported():
        return "medium"
    return "high" if device == "cuda" and precision == "bf16" else "highest"


def _settings() -> tuple[int, str, bool]:
    return torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def _set(threads: int, matmul: str, tf32: bool) -> None:
    """`tf32` is for convolutions on a GPU."""
    if threads != torch.get_num_threads():  # costs time where there is nothing to change, too
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = tf32


@contextlib.contextmanager
def keeping_memory(*, sparing: bool = False) -> Iterator[Callable[[], None]]:
    """What is freed while the block runs stays with the process, for the next step of a training that needs as much.

    By itself the C library hands a large block back as soon as it is freed, and the system clears every page of the
    next one: a fifth of a step of BERT base. Other C libraries than glibc are left as they are.

    sparing  half of it, for a model that hardly fits: blocks of 8 MiB or more, such as weights gathered from other
             ranks, are handed back at once

    Yields what has to be called after each step. Blocks of many sizes tear what is kept to pieces that no later block
    fits into, so that a process grows for hours; it gives back what is free once it holds `MOST_HELD` times as much as
    it did after the first step, or after the one that followed the last time.
    """
    libc = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
    if libc is None:
        yield lambda: None
        return
    if sparing:
        libc.mallopt(M_MMAP_THRESHOLD, 2**23)  # once set, it no longer grows with what is freed
    else:
        libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)
    needed = 0

    def tidy() -> None:
        nonlocal needed
        held = resident()
        if needed == 0:
            needed = held
        elif held > MOST_HELD * needed:
            libc.malloc_trim(0)
            needed = 0

    try:
        yield tidy
    finally:  # what glibc's own adaptation ends at
        libc.mallopt(M_MMAP_MAX, 65_536)
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        libc.mallopt(M_TRIM_THRESHOLD, 64 * 2**20)
        libc.malloc_trim(0)


def processor() -> str:
    """The name of the machine's processor, as the system tells it."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def resident() -> int:
    """Bytes of memory that this process holds now; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


def physical_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout and gradients while the block runs; after it the model's mode is what it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
