"""Sizes of tiles, vector instructions and number formats of the inference kernels on this processor.

The module does not import Numba, so that programs which only call compiled kernels start fast.
"""

from __future__ import annotations

import os

import torch
from llvmlite import binding

# number of rows of the largest tile: its 6 x 4 accumulators, 4 weights and an activation fill the 32 registers of
# AVX-512
ROWS = 6
LINE = 64  # size of a cache line in bytes

# Supported head widths for attention that reads keys directly from memory, in vector registers per head.
WIDTHS = (1, 2, 4, 8)
FLOAT32, BF16, INT8 = range(3)

# CPU features for which Numba compiles; empty if its environment variables name another processor
_OTHER = os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES")
_FEATURES = {} if _OTHER else binding.get_host_cpu_features()
# PyTorch's name of the vector instructions of this CPU. Tests select older instructions with the environment variable
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
