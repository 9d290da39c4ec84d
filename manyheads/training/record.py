"""Writer of result.json for finished runs, and of the list of runs that this user has trained on this machine.

The file result.json names the data files of its run. A run directory from another person could name any file.
Therefore commands open these files without the option --trust only if the user has trained the run. To recognize such
runs, training stores a digest of each run's data description in the user's state directory ($XDG_STATE_HOME, or
~/.local/state). A run directory that was copied from another machine cannot add such a digest. The list contains at
least the last `MAX_RUNS` runs; older runs need --trust again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from manyheads.core.runtime import processor
from manyheads.files import JsonMapping, JsonObject, write_json

logger = logging.getLogger(__name__)

MAX_RUNS = 2000  # The list of the user's runs is shortened to this number when it has twice as many.

# Metrics by name: {name: {"value": number, "signature": description of the method of measurement}}
Metrics = dict[str, JsonObject]

# names of all metrics that a validation may measure
METRICS = (
    "loss", "accuracy", "f1", "macro_f1", "micro_f1", "mcc", "map", "top1", "top5", "mse", "mae", "pearson", "spearman",
    "mrr", "recall_at_1", "recall_at_10", "ap", "ap50",
    "bleu_13a", "bleu_moses_lc", "chrf", "exact_match", "perplexity", "bits_per_byte", "bits_per_pixel",
    "entity_f1", "squad_f1", "squad_em", "next_sentence_accuracy", "encoder_steps", "decoder_steps",
)  # fmt: skip

_added: set[str] = set()  # digests of the runs trained by this process, in case the file cannot be written


def hardware() -> JsonObject:
    """Return a description of this machine: processor, threads, torch version and, if present, the GPU."""
    machine: JsonObject = {
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
    overrides: JsonMapping,
    data: JsonMapping,
    metrics: Mapping[str, JsonMapping],
    wall_seconds: float,
    flops: float | None,
    parameters: int,
    seed: int,
    **more: object,
) -> JsonObject:
    """Write the file result.json of a run into the directory `out`, and return its content.

    The run is also added to the list of runs that this user has trained.

    overrides     settings of the user that differ from the recipe
    data          description of the data (`Source.describe`)
    metrics       {name: {"value": number, "signature": description of the method}}
    wall_seconds  duration of training in seconds
    flops         FLOPs of training; None if unknown
    parameters    number of parameters of the model
    more          further entries of result.json, stored unchanged
    """
    result = {
        "recipe": recipe, "overrides": dict(overrides), "data": dict(data), "metrics": dict(metrics),
        "wall_seconds": round(wall_seconds, 1), "hardware": hardware(), "flops": flops, "parameters": parameters,
        "seed": seed, "commit": commit(), **more,
    }  # fmt: skip
    write_json(out / "result.json", result)
    add_own_run(data)
    return result


def add_own_run(data: JsonMapping) -> None:
    """Add a run to the list of runs that this user has trained.

    The list contains a digest of the run's data description. A warning is logged if the list cannot be written.
    """
    digest = _digest(data)
    if is_own_run(data):
        return
    _added.add(digest)
    try:
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        _append(file, digest)
    except (OSError, RuntimeError) as error:  # Path.home() raises RuntimeError if the user has no home directory.
        logger.warning(
            f"cannot register the run as your own ({error}): to evaluate it later, add --trust or --data PATH"
        )


def is_own_run(data: JsonMapping) -> bool:
    digest = _digest(data)
    if digest in _added:
        return True
    try:
        return digest in _file().read_text(encoding="ascii", errors="replace").split()
    except (OSError, RuntimeError):
        return False


def _append(file: Path, digest: str) -> None:
    """Append a digest to the file. If the file then has twice `MAX_RUNS` lines, keep only the last `MAX_RUNS`."""
    with file.open("a+", encoding="ascii", errors="replace") as lines:
        with suppress(OSError):  # Some file systems have no locks; there, two runs that end together may lose a digest.
            fcntl.flock(lines, fcntl.LOCK_EX)
        lines.seek(0)
        digests = lines.read().split()
        if len(digests) >= 2 * MAX_RUNS:
            lines.truncate(0)
            lines.write("".join(f"{line}\n" for line in digests[1 - MAX_RUNS :]))
        lines.write(digest + "\n")


def _file() -> Path:
    configured = os.environ.get("XDG_STATE_HOME", "")
    state = Path(configured) if os.path.isabs(configured) else Path.home() / ".local" / "state"
    return state / "manyheads" / "runs"


def _digest(data: JsonMapping) -> str:
    # JSON converts numeric keys to strings, which have another order than numbers. Convert them before sorting, so that
    # data from a file and data in memory have the same digest.
    normalized = json.loads(json.dumps(data))
    return hashlib.sha256(json.dumps(normalized, sort_keys=True).encode()).hexdigest()
