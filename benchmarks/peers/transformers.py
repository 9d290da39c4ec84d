"""transformers: the model that opens a directory which we saved, on the float32 route that ours takes, or in bf16."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import torch

from manyheads import directory

SETTINGS: Mapping[str, str] = {"float32": "float32", "bf16": "bf16"}


def twin(model: Any, auto: str, setting: str = "float32") -> Any:
    """The same weights as a model of transformers, by one of its Auto classes; `bf16`: all weights in bfloat16."""
    import transformers
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()  # it warns of every head that a directory goes without
    with tempfile.TemporaryDirectory() as folder:
        directory.save(folder, model)
        kind = torch.bfloat16 if setting == "bf16" else torch.float32
        return getattr(transformers, auto).from_pretrained(folder, dtype=kind)
