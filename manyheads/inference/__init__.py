"""Fast inference: `compile_model` returns a loaded model in the fastest form for this machine.

On a CPU, each stack of Transformer blocks is replaced by a module (`stack.py`). This module runs the stack by the route
that was measured as the fastest (`routes.py`): fused kernels with packed weights (`kernels/`), matrix products of
oneDNN (`onednn.py`), or the original modules. The original modules also run for features that the other routes do not
support, such as recording or editing of activations. The saved model does not change.

Numba (extra `fast`) compiles the kernels. Without it, models run unchanged. `graphs.py` is for GPUs.
"""

from manyheads.inference.compilation import BOUNDS, check, compile_model, has_kernels, speeds
from manyheads.inference.model import CompiledModel

__all__ = ["BOUNDS", "CompiledModel", "check", "compile_model", "has_kernels", "speeds"]
