"""Type aliases for the objects of Numba and llvmlite that the code generators use. Neither library has type hints."""

from __future__ import annotations

from typing import Any, TypeAlias

Builder: TypeAlias = Any  # llvmlite.ir.IRBuilder, which appends instructions to a function
Value: TypeAlias = Any  # value or type of LLVM's intermediate representation, or of Numba
Context: TypeAlias = Any  # Numba's typing context or code generation context
