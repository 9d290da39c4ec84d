"""Peak rates of the machine, measured in the same run as the programs that they are compared with.

They give the limit of a row: a run cannot be shorter than the time to read its weights (and keys and values) once per
step, nor than the time of its matrix products. Operations are those of `analysis/costs.py`. A weight has 4 bytes in
float32, 2 in bf16 and 1 in int8.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.ours import training_precisions
from manyheads.core.runtime import BUFFER_BYTES, bytes_per_second, prepare
from manyheads.inference import has_kernels

BYTES = {"float32": 4, "bf16": 2, "int8": 1}  # of a weight
WIDTH = 2048  # of the square products
TIMES = 5


@dataclass(frozen=True)
class Ceilings:
    """memory: bytes read a second; products: operations (2 for a multiply-add) a second, by precision."""

    memory: float
    products: Mapping[str, float]

    def least(self, precision: str, numbers: float, operations: float) -> float:
        """Seconds that reading so many numbers and so many operations take, whichever takes longer."""
        return max(BYTES[precision] * numbers / self.memory, operations / self.products[precision])

    def better(self, other: Ceilings) -> Ceilings:
        """The higher of each rate: a machine that others share may give less while one of the two is measured."""
        products = {kind: max(rate, other.products[kind]) for kind, rate in self.products.items()}
        return Ceilings(max(self.memory, other.memory), products)

    def describe(self) -> dict[str, Any]:
        rates = {precision: round(rate / 1e9, 1) for precision, rate in self.products.items()}
        return {"memory_gb_per_second": round(self.memory / 1e9, 1), "products_gflop_per_second": rates}


def ceilings(threads: int, buffer: int = BUFFER_BYTES, width: int = WIDTH) -> Ceilings:
    """Measure the peak rates with `threads` threads: the best of a few trials, for PyTorch and for our own tile kernel.

    bf16 is measured only on processors with bf16 products. Elsewhere it takes minutes, and oneDNN refuses.
    """
    with torch.no_grad(), prepare(threads=threads).settings():
        memory = max(bytes_per_second(threads, buffer), _large_pages_per_second(buffer))
        x, weight = torch.randn(width, width), torch.randn(width, width) * 0.02
        routes: dict[str, list[Callable[[], object]]] = {
            "float32": _dense(x, weight),
            "bf16": _dense(x.bfloat16(), weight.bfloat16()) if "bf16" in training_precisions() else [],
            "int8": _int8(x, weight),
        }
        for name, ways in routes.items():
            ways += _tile(x, weight, name, threads)
        products = {name: 2 * width**3 / min(map(_seconds, ways)) for name, ways in routes.items() if ways}
    return Ceilings(memory, products)


def _large_pages_per_second(size: int) -> float:
    """Bytes read a second of memory that NumPy asks for, as lowered models do: its pages may be larger."""
    memory = torch.from_numpy(np.ones(size // 4, dtype=np.float32))
    return size / _seconds(memory.sum)


def _dense(x: torch.Tensor, weight: torch.Tensor) -> list[Callable[[], object]]:
    """The product as PyTorch takes it, and by oneDNN with the weight in the order that its kernels read."""
    ways: list[Callable[[], object]] = [lambda: F.linear(x, weight)]
    if torch.backends.mkldnn.is_available():
        ops = torch.ops.mkldnn
        packed = ops._reorder_linear_weight(weight, len(x))
        ways.append(lambda: ops._linear_pointwise(x, packed, None, "none", [], ""))
    return ways


def _int8(x: torch.Tensor, weight: torch.Tensor) -> list[Callable[[], object]]:
    """With the rows of x quantized on the way; none where this PyTorch has no kernels for it."""
    engine = next((name for name in ("x86", "onednn", "fbgemm", "qnnpack")
                   if name in torch.backends.quantized.supported_engines), None)  # fmt: skip
    if engine is None:
        return []
    before, torch.backends.quantized.engine = torch.backends.quantized.engine, engine
    scales = weight.abs().amax(1).double() / 127
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")  # deprecated, and without a successor
    whole = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(whole, None)
    torch.backends.quantized.engine = before
    return [lambda: torch.ops.quantized.linear_dynamic(x, packed)]


def _tile(x: torch.Tensor, weight: torch.Tensor, precision: str, threads: int) -> list[Callable[[], object]]:
    """The product as lowered models take it; none where they do not."""
    if not has_kernels():
        return []
    from manyheads.inference.kernels.packed import get_team
    from manyheads.inference.kernels.processor import HAS_BF16, HAS_INT8
    from manyheads.inference.linear import FusedLinear

    if not {"float32": True, "bf16": HAS_BF16, "int8": HAS_INT8}[precision]:
        return []
    layer = FusedLinear(weight, None, precision, get_team(threads))
    return [lambda: layer(x)]


def _seconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
