"""The file result.json, which describes a finished run and contains its metrics."""

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from manyheads.core.runtime import processor
from manyheads.files import write_json
from manyheads.training import own_runs

# Metrics by name: {name: {"value": number, "signature": description of the method of measurement}}
Metrics = dict[str, dict[str, Any]]

# names of all metrics that a validation may measure
METRICS = (
    "loss", "accuracy", "f1", "macro_f1", "micro_f1", "mcc", "map", "top1", "top5", "mse", "mae", "pearson", "spearman",
    "bleu_13a", "bleu_moses_lc", "chrf", "exact_match", "perplexity", "bits_per_byte", "entity_f1", "squad_f1",
    "squad_em", "next_sentence_accuracy", "encoder_steps", "decoder_steps",
)  # fmt: skip


def hardware() -> dict[str, Any]:
    """Return a description of this machine: processor, threads, torch version and, if present, the GPU."""
    machine: dict[str, Any] = {
        "cpu": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    return machine


@cache
def commit() -> str:
    """Return the Git commit of the source code, as of the first call, with `-dirty` if files were modified.

    Without a Git checkout, returns the version of the package.
    """
    package = Path(__file__).resolve().parents[1]
    if (package.parent / ".git").exists():
        try:
            return subprocess.run(
                ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
                capture_output=True, text=True, check=True,
            ).stdout.strip()  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            pass
    try:
        return metadata.version("manyheads")
    except metadata.PackageNotFoundError:
        return "unknown"


def write_result(
    out: Path,
    *,
    recipe: str,
    overrides: Mapping[str, Any],
    data: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    wall_seconds: float,
    flops: float | None,
    parameters: int,
    seed: int,
    **more: Any,
) -> dict[str, Any]:
    """Write the file result.json of a run into the directory `out`, and return its content.

    The run is also registered as a run of this user.

    metrics  {name: {"value": number, "signature": description of the method}}
    more     further entries, stored unchanged
    """
    result = {
        "recipe": recipe, "overrides": dict(overrides), "data": dict(data), "metrics": dict(metrics),
        "wall_seconds": round(wall_seconds, 1), "hardware": hardware(), "flops": flops, "parameters": parameters,
        "seed": seed, "commit": commit(), **more,
    }  # fmt: skip
    write_json(out / "result.json", result)
    own_runs.add(data)
    return result
