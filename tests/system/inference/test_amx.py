"""Kernels for AMX: their arithmetic in a software emulation, their instructions, and their absence on request."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("numba") is None:
    pytest.skip("the kernels are compiled by Numba (extra `fast`)", allow_module_level=True)

from manyheads.inference.kernels import processor

BOUNDS = {"bf16": 0.01, "int8": 0.04}
# Instructions of a processor with AMX, compiled but not run.
COMPILE = """
from numba import njit, types
from manyheads.inference.kernels import amx
@njit
def product(kind, rows, a, a_stride, w, steps, out, out_stride):
    amx.multiply(kind, rows, a, a_stride, w, steps, out, out_stride)
    amx.release()
product.compile((types.int64,) * 8)
print(*product.inspect_asm().values())
"""


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not (processor.HAS_BF16 and processor.HAS_INT8), reason="needs AVX512-BF16 and AVX512-VNNI")
def test_emulated_tiles_give_the_products_of_the_vector_kernels(tmp_path: Path) -> None:
    """Rows that fill no tile, widths that no tile divides, few rows, odd numbers of keys."""
    script = str(Path(__file__).with_name("amx_emulator.py"))
    lines = run(script, NUMBA_CACHE_DIR=str(tmp_path), MANYHEADS_ROUTE="kernels").splitlines()
    assert len(lines) == 8
    for line in lines:
        precision, _, error, loads = line.split()
        assert float(error) < BOUNDS[precision], line
        assert int(loads) > 500, line


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions of another architecture")
def test_the_compiler_selects_amx_instructions() -> None:
    features = "+amx-tile,+amx-bf16,+amx-int8,+avx512f"
    assembly = run("-c", COMPILE, NUMBA_CPU_NAME="sapphirerapids", NUMBA_CPU_FEATURES=features)
    for instruction in ("ldtilecfg", "tileloadd", "tdpbf16ps", "tdpbusd", "tilestored", "tilerelease"):
        assert instruction in assembly


@pytest.mark.parametrize("refused", ["by the user", "by the system"])
def test_amx_may_be_refused(refused: str) -> None:
    """The vector kernels run then, whatever the processor."""
    patch = "torch.cpu._init_amx = lambda: False" if refused == "by the system" else ""
    code = (
        f"import torch; {patch}\nfrom manyheads.inference.kernels import processor as p; print(p.HAS_AMX, p.MAX_ROWS)"
    )
    environment = {"MANYHEADS_AMX": "0"} if refused == "by the user" else {}
    assert run("-c", code, **environment).split() == ["False", "6"]
