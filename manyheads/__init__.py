"""Train, run and inspect Transformer models from published papers; all models use the same attention code.

    load     load a trained model, which translates, classifies, ..., and shows its attention
    train    train a model of a recipe
    compare  compare two trained models on the same test data
    list_runs  table of the runs in a folder, with settings and scores
    record   record attention maps or states while a model runs
    edit     change heads or layers while a model runs
    preset   configuration of a published model, such as bert/base-cased
    build    build the model of a configuration, without trained weights

All are imported on first use, so that `import manyheads` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "build", "compare", "edit", "list_runs", "load", "preset", "record", "train"]

if TYPE_CHECKING:
    from manyheads.core.editing import edit
    from manyheads.core.recording import record
    from manyheads.models.presets import build, preset
    from manyheads.runs.listing import list_runs
    from manyheads.tasks.comparison import compare
    from manyheads.tasks.loading import load
    from manyheads.tasks.train import train

_HOMES = {
    "build": "manyheads.models.presets",
    "compare": "manyheads.tasks.comparison",
    "edit": "manyheads.core.editing",
    "list_runs": "manyheads.runs.listing",
    "load": "manyheads.tasks.loading",
    "preset": "manyheads.models.presets",
    "record": "manyheads.core.recording",
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
