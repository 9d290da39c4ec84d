"""Cost of checkpoints: the seconds for which the training loop pauses, and the processor time of the writing thread.

    python -m benchmarks checkpoints [--repeats 5] [--threads 1] [--out FILE.json]

The checkpoint holds GPT-2 with 124 million parameters and both moments of Adam, 1.5 GB. The loop pauses for a copy in
memory. A thread then computes checksums and writes; if every core is busy, its processor time is lost, too. The
reported fraction includes both, with one checkpoint per minute. `read` is the time to verify and load a checkpoint.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.output import command
from manyheads.core.runtime import prepare
from manyheads.models.presets import build, preset
from manyheads.training.checkpoints import Checkpoints
from manyheads.training.record import hardware

MODEL = "gpt2/124m"


def measure(repeats: int, threads: int | None) -> dict[str, Any]:
    compute = prepare(threads=threads)
    with compute.settings(), tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        parameters = dict(build(preset(MODEL, "gpt2")).named_parameters())
        tensors = {
            f"{kind}.{n}": torch.randn_like(p) for n, p in parameters.items() for kind in ("model", "first", "second")
        }
        seconds: dict[str, list[float]] = {"still": [], "written": [], "computed": [], "read": []}
        with Checkpoints(Path(folder)) as checkpoints:
            for step in range(repeats + 1):  # the first takes new memory
                began = time.perf_counter()
                checkpoints.save(step, tensors, {}, [])
                seconds["still"].append(time.perf_counter() - began)
                computed = time.process_time()
                checkpoints.wait()
                seconds["computed"].append(time.process_time() - computed)
                seconds["written"].append(time.perf_counter() - began)
        for _ in range(repeats + 1):
            began = time.perf_counter()
            Checkpoints(Path(folder)).latest()
            seconds["read"].append((time.perf_counter() - began) / 2)  # it has checked both that are kept
    medians = {kind: statistics.median(values[1:]) for kind, values in seconds.items()}
    return {
        "bench": "checkpoints", "model": MODEL, "parameters": sum(p.numel() for p in parameters.values()),
        "bytes": sum(t.numel() * t.element_size() for t in tensors.values()),
        "seconds": {
            kind: {"median": round(medians[kind], 3), "min": round(min(runs), 3), "max": round(max(runs), 3)}
            for kind, (_, *runs) in seconds.items()
        },
        "first_still_seconds": round(seconds["still"][0], 3), "repeats": repeats,
        "share_at_one_a_minute": round((medians["still"] + medians["computed"]) / 60, 5),
        "share_still_at_one_a_minute": round(medians["still"] / 60, 5),
        "hardware": {**hardware(), "threads": compute.describe()["threads"]}, "route": compute.describe(),
    }  # fmt: skip


if __name__ == "__main__":
    command(__doc__, 5, measure)
