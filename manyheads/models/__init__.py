"""Models, one file per paper.

Each file contains a configuration and a module, built from the layers in `manyheads.core`. The classes are imported on
first use, so that `import manyheads.models` does not import torch:

    >>> from manyheads import models
    >>> models.GPT(models.GPTConfig(vocab=100, width=16, layers=1, heads=2)).config.width
    16
    >>> "Transformer" in dir(models)
    True
"""

from importlib import import_module
from typing import Any

from manyheads.models.presets import FAMILIES, build, preset

__all__ = ["build", "preset"]
_HOMES = {name: family.module for family in FAMILIES.values() for name in (family.config, family.model)}


def __getattr__(name: str) -> Any:
    if name in _HOMES.values():
        return import_module(f"manyheads.models.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'manyheads.models' has no attribute {name!r}")
    value = getattr(import_module(f"manyheads.models.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES, *_HOMES.values()})
