"""Fast inference: `compile_model` returns a loaded model in the fastest form for this machine.

On a CPU, the stacks of Transformer blocks are replaced by modules (`stack.py`) that run them by a measured route
(`routes.py`): fused kernels with packed weights (`kernels/`), or products of oneDNN (`onednn.py`). The original modules
run if they are faster, and for features that the routes do not support, such as recording or editing of activations.
The saved model does not change.

Numba (extra `fast`) compiles the kernels. Without it, models run unchanged. `graphs.py` is for GPUs.
"""

from manyheads.inference.compilation import BOUNDS, check, compile_model, has_kernels, speeds
from manyheads.inference.model import CompiledModel

__all__ = ["BOUNDS", "CompiledModel", "check", "compile_model", "has_kernels", "speeds"]
