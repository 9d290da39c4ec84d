"""Weights of an unfinished run: the best or the last ones of its last checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from manyheads.core.low_rank import merged
from manyheads.errors import UserError
from manyheads.training.checkpoints import Checkpoints
from manyheads.training.run_directory import MODEL, resume_command, run_status


def model_files(path: Path) -> Path:
    """Return the directory with the model's files: `state/model` for an unfinished run, otherwise `path` itself."""
    files = path / "state" / MODEL
    return files if (files / "config.json").is_file() and run_status(path) == "unfinished" else path


def read_unfinished(path: Path) -> tuple[Path, dict[str, Tensor], str] | None:
    """Return the model directory of an unfinished run, its weights by name, and their description.

    Returns None if `path` is no unfinished run. The weights are the best ones by
    `training.metric`. Without a metric they are the moving average or the last ones.
    """
    files = model_files(path)
    checkpoint = None if files == path else Checkpoints(path / "state").latest()
    if checkpoint is None:
        return None
    content, tensors = checkpoint
    try:  # The checkpoint may come from an untrusted source.
        step, best = content["step"], content["counters"]["best"]
        if best and best["file"] in content["files"]:
            name, step, weights = "best", int(best["step"]), load_file(path / "state" / best["file"])
        else:
            prefix = "ema." if any(key.startswith("ema.") for key in tensors) else "model."
            name = {"ema.": "averaged", "model.": "last"}[prefix]
            weights = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        total = _total_steps(content)
    except (OSError, SafetensorError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path}: cannot use the checkpoint: {error}; resume with: {resume_command(path)}") from None
    return files, merged(weights), (
        f"{path}: using the {name} weights, step {step:,}{f' of {total:,}' if total else ''}; the run is unfinished: "
        f"resume with: {resume_command(path)}"
    )  # fmt: skip


def _total_steps(content: dict[str, Any]) -> int | None:
    config = content["config"]
    epochs = config["epochs"] and config["epochs"] * math.ceil(content["batches"] / config["accumulate"])
    return min((steps for steps in (config["steps"], epochs) if steps), default=None)
