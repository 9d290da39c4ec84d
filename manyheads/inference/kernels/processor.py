"""Sizes of tiles, vector instructions and number formats of the inference kernels on this processor.

The module does not import Numba, so that programs which only call compiled kernels start fast. Without llvmlite, which
is installed with Numba, it describes a processor without special instructions.
"""

from __future__ import annotations

import os

import torch

try:
    from llvmlite import binding
except ImportError:
    binding = None

# Maximum number of rows of a tile. The 6 x 4 accumulators of this tile, 4 registers of weights and one of activations
# fit into the 32 registers of AVX-512.
ROWS = 6
AMX_ROWS = 32  # number of rows of the largest product on the tile registers of AMX, which hold 16 rows each
AMX_STEPS = 16  # number of steps that one AMX instruction computes; also the number of columns of a tile register
LINE = 64  # size of a cache line in bytes

# Head widths that are supported by attention that reads keys directly from memory, in vector registers.
WIDTHS = (1, 2, 4, 8)
FLOAT32, BF16, INT8 = range(3)

# Features of this CPU, for which Numba compiles. Empty if environment variables make Numba compile for another CPU.
_OTHER = os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES")
_FEATURES = {} if _OTHER or binding is None else binding.get_host_cpu_features()
# True if PyTorch uses AVX-512 on this CPU. Tests select older instructions with the environment variable
# ATEN_CPU_CAPABILITY.
_WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
LANES = 16 if _WIDE else 8  # number of float32 numbers in a vector register
VECTORS = 4 if _WIDE else 2  # number of vectors in a row of a tile; 16 registers hold 6 x 2 accumulators
COLUMNS = LANES * VECTORS
HAS_BF16 = _WIDE and _FEATURES.get("avx512bf16", False)
HAS_INT8 = (
    _FEATURES.get("avx512vnni", False)
    if _WIDE
    else torch.backends.cpu.get_cpu_capability() == "AVX2" and _FEATURES.get("avxvnni", False)
)

# True if the kernels use AMX for matrix products in bf16 and 8 bits. A process must request AMX from the operating
# system, which may refuse it. MANYHEADS_AMX=0 disables AMX.
HAS_AMX = bool(
    HAS_BF16 and HAS_INT8 and os.environ.get("MANYHEADS_AMX") != "0"
    and all(_FEATURES.get(f"amx-{part}") for part in ("tile", "bf16", "int8")) and torch.cpu._init_amx()
)  # fmt: skip
MAX_ROWS = AMX_ROWS if HAS_AMX else ROWS
