"""transformers: the model that opens a directory which we saved, on the float32 route that ours takes, or in bf16."""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from manyheads import directory

SETTINGS: Mapping[str, str] = {"float32": "float32", "bf16": "bf16"}
HAS_COMPILER = (
    bool(shutil.which(os.environ.get("CXX", "g++"))) and Path(sysconfig.get_path("include"), "Python.h").is_file()
)
# those of a model that is called with whole sequences: as it is, and where PyTorch has a compiler, compiled
COMPILED: Mapping[str, str] = {
    **SETTINGS, **{f"{setting} compiled": precision for setting, precision in SETTINGS.items() if HAS_COMPILER}
}  # fmt: skip


def twin(model: Any, auto: str, setting: str = "float32") -> Any:
    """The same weights as a model of transformers, by one of its Auto classes; `bf16`: all weights in bfloat16."""
    import transformers
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()  # it warns of every head that a directory goes without
    precision, _, compiled = setting.partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        directory.save(folder, model)
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        other = getattr(transformers, auto).from_pretrained(folder, dtype=kind)
    if compiled:
        other.compile()
    return other


def trained(model: Any, auto: str, setting: str) -> Any:
    """The same for training: all weights in float32, whatever the precision of the products."""
    return twin(model, auto, f"float32 {setting.partition(' ')[2]}".strip())
