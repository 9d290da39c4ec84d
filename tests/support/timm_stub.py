"""timm without torchvision: the tested models need only its imports to succeed.

from tests.support.timm_stub import load_timm

timm = load_timm()  # skips the test, or the whole file if called at its top, if timm is not installed
reference = timm.create_model("seresnet18", num_classes=7)
"""

import enum
import importlib
import sys
import types
from importlib.util import find_spec
from typing import Any

import pytest
from torch import nn

NAMES = (
    "torchvision", "torchvision.datasets", "torchvision.models", "torchvision.models.feature_extraction",
    "torchvision.ops", "torchvision.ops.misc", "torchvision.transforms", "torchvision.transforms.functional",
)  # fmt: skip
InterpolationMode = enum.Enum("InterpolationMode", "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS")


class _Stub(types.ModuleType):
    """A module in which every name is a layer that does nothing."""

    __path__: Any = ()  # a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return InterpolationMode if name == "InterpolationMode" else type(name, (nn.Module,), {})


def load_timm() -> Any:
    """Import timm. The stub is removed afterwards, so that other code does not take it for torchvision."""
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: pip install --no-deps timm", allow_module_level=True)
    if "timm" in sys.modules or find_spec("torchvision") is not None:
        return importlib.import_module("timm")
    stubs = {name: _Stub(name) for name in NAMES}
    for name, stub in stubs.items():
        above, _, own = name.rpartition(".")
        if above:
            setattr(stubs[above], own, stub)
    sys.modules.update(stubs)
    try:
        return importlib.import_module("timm")
    finally:
        for name in NAMES:
            del sys.modules[name]
