"""Train, run and inspect Transformer models from published papers; all models use the same attention code.

The functions `load`, `train`, `record` and `edit` are imported on first use, so that `import manyheads` does not
import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "edit", "load", "record", "train"]

if TYPE_CHECKING:
    from manyheads.core.tap import edit, record
    from manyheads.tasks.loading import load
    from manyheads.tasks.train import train

_HOMES = {
    "edit": "manyheads.core.tap",
    "load": "manyheads.tasks.loading",
    "record": "manyheads.core.tap",
    "train": "manyheads.tasks.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'manyheads' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
