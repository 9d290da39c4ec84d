"""How to run: threads, precision, the float32 route, compilation. The only place that knows the machine."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

Precision = Literal["float32", "bf16"]


@dataclass(frozen=True)
class Route:
    """The way through the kernels that a run takes. Two runs on the same route give the same bits.

    precision  "float32", or "bf16": autocast of the matrix products to bfloat16, weights stay float32
    threads    of PyTorch on the CPU
    matmul     torch's float32 matmul precision. On a CPU "medium" sends products through oneDNN: twice as fast as the
               default where there is AVX-512, slower where there is not, and real bf16 where there is AMX.
    """

    device: str
    precision: Precision
    threads: int
    matmul: str
    compiled: bool

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)

    def compile(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function, compiled where the route asks for it (needs a C++ compiler on the CPU)."""
        return torch.compile(function, dynamic=True) if self.compiled else function

    def describe(self) -> dict[str, Any]:
        """What a checkpoint keeps: a resumed run is bit-exact on the same route, torch and processor."""
        return {**asdict(self), "torch": torch.__version__, "processor": processor()}


def prepare(
    precision: Precision = "float32", threads: int | None = None, compile: bool = False, device: str | None = None
) -> Route:
    """Set the process up and say how it runs. `device`: a GPU where there is one, unless named."""
    if precision not in get_args(Precision):
        raise ValueError(f"unknown precision {precision!r}: valid are {', '.join(get_args(Precision))}")
    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads is {threads}: expected 1 or more")
        torch.set_num_threads(threads)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if precision == "bf16" and device == "cpu" and not torch.cpu._is_avx512_bf16_supported():
        print("warning: this processor has no bf16 products: precision bf16 will be slower here", file=sys.stderr)
    matmul = "high" if device == "cuda" else _float32_route()
    torch.set_float32_matmul_precision(matmul)
    return Route(device, precision, torch.get_num_threads(), matmul, compile)


def processor() -> str:
    """The name of the machine's processor, as the system tells it."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _float32_route() -> str:
    """By what the processor has, not by a stopwatch: two runs on one machine must take the same route."""
    if torch.cpu._is_avx512_supported() and not torch.cpu._is_amx_tile_supported():
        return "medium"
    return "highest"


def products_per_second() -> float:
    """FLOP/s that this machine reaches in a product of two 1024 x 1024 matrices, on the device of `prepare`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.ones(1024, 1024, device=device)
    return 2 * 1024**3 / _seconds(a, a)


def _seconds(a: Tensor, b: Tensor) -> float:
    times = []
    for _ in range(6):
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for a device that works asynchronously
        times.append(time.perf_counter() - start)
    return min(times)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and gradients while the block runs; after it the model's mode is what it was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
