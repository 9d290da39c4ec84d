"""The GPU: name, driver, and its peak rates as published and as measured."""

from __future__ import annotations

import platform
import subprocess
import time
from typing import Any

import torch

from benchmarks.gpu.session import Session
from manyheads.core.runtime import processor

# part of a GPU's name, dense bf16 FLOP/s and bytes read a second, by its data sheet; the first match counts
PUBLISHED = (
    ("H100 PCIe", 756e12, 2.0e12), ("H100 NVL", 835e12, 3.9e12), ("H200", 989e12, 4.8e12), ("H100", 989e12, 3.35e12),
    ("A100", 312e12, 2.0e12), ("L40S", 362e12, 0.864e12), ("L4", 121e12, 0.3e12), ("A10", 125e12, 0.6e12),
)  # fmt: skip
TIMES = 10


def measure(session: Session) -> None:
    """Write the entry `machine`: name, driver and rates of the device."""
    size, numbers = (256, 2**20) if session.tiny else (8192, 2**29)
    rates = {"bf16": _products(session, size, torch.bfloat16), "float32": _products(session, size, torch.float32)}
    name, driver = _gpu() if session.device == "cuda" else (processor(), "")
    flops, memory = next(((f, m) for part, f, m in PUBLISHED if part in name), (None, None))
    session.tell(
        machine={
            "name": name, "driver": driver, "torch": torch.__version__, "cuda": torch.version.cuda,
            "python": platform.python_version(), "measured_flop_per_second": rates, "published_flop_per_second": flops,
            "measured_bytes_per_second": _reads(session, numbers), "published_bytes_per_second": memory,
        }
    )  # fmt: skip


def _gpu() -> tuple[str, str]:
    """Return the name of the GPU and the version of its driver, empty if the system does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        driver = ""
    return torch.cuda.get_device_name(), driver.strip()


def _products(session: Session, size: int, kind: torch.dtype) -> float:
    a, b = (torch.randn(size, size, device=session.device, dtype=kind) for _ in range(2))
    return 2 * size**3 / _seconds(session, lambda: a @ b)


def _reads(session: Session, numbers: int) -> float:
    memory = torch.ones(numbers, device=session.device)
    return 4 * numbers / _seconds(session, memory.sum)


def _seconds(session: Session, work: Any) -> float:
    """Of one call: the best of a few rounds of TIMES calls."""
    best = float("inf")
    for _ in range(4):
        session.wait()
        began = time.perf_counter()
        for _ in range(TIMES):
            work()
        session.wait()
        best = min(best, (time.perf_counter() - began) / TIMES)
    return best
