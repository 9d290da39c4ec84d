"""What checkpoints cost a training: the seconds that the loop loses to each, and how long a resumed run takes to begin.

    python -m bench.checkpoints [--repeats 5] [--threads 1] [--out FILE.json]

GPT-2 of 124 million parameters learns random tokens, with a checkpoint (weights and both moments of Adam: 1.5 GB) every
so many steps. What a checkpoint costs is how much longer the steps from it to the next one take than as many of those
in which nothing is written: the time that the loop stands still, and what the thread that writes takes from it.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import command
from manyheads.core.runtime import Route, prepare
from manyheads.models.presets import build, preset
from manyheads.tasks.language.task import Batch
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train
from manyheads.training.record import hardware

ROWS, TOKENS = 1, 64
QUIET = 12  # steps before a checkpoint, in which nothing is written any more


class RandomTokens:
    """A task that notes when each of its steps begins."""

    unit = "tokens"

    def __init__(self, route: Route) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = build(preset("gpt2/124m", "gpt2")).to(route.device)
        self.route, self.began = route, list[float]()

    def batches(self, epoch: int) -> Sequence[Batch]:
        tokens = torch.randint(50_000, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(epoch))
        return [Batch(tokens[:, :-1], tokens[:, 1:])] * 10_000

    def loss(self, batch: Batch) -> Tensor:
        self.began.append(time.perf_counter())
        logits = self.model(batch.read.to(self.route.device))
        return F.cross_entropy(logits.flatten(0, 1), batch.write.to(self.route.device).flatten(), reduction="sum")

    def validate(self) -> dict[str, float]:
        return {}

    def save(self, directory: Path) -> str:
        return "gpt2"


def measure(repeats: int, threads: int | None) -> dict[str, Any]:
    route = prepare(threads=threads)
    every = 3 * QUIET
    settings: dict[str, Any] = {"schedule": "constant", "warmup": 0, "learning_rate": 1e-4, "log_every": 1000}
    config = TrainingConfig(steps=(repeats + 1) * every, checkpoint_every=every, **settings)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        task = RandomTokens(route)
        train(task, config, Path(folder) / "run", route=route)
        size = sum(path.stat().st_size for path in (Path(folder) / "run" / "state").glob("checkpoint-*.safetensors"))
        seconds = [after - before for before, after in itertools.pairwise(task.began)]
        lost, quiet = [], []
        for start in range(every - 1, len(seconds), every):  # the first step of these lasts until after the checkpoint
            these = seconds[start : start + every]
            step = statistics.median(these[-QUIET:])
            quiet.append(step)
            lost.append(sum(these) - len(these) * step)
        again = RandomTokens(route)
        began = time.perf_counter()
        more = TrainingConfig(steps=config.steps + 1 if config.steps else 1, checkpoint_every=every, **settings)
        train(again, more, Path(folder) / "run", route=route, resume=True)
    cost = statistics.median(lost)
    return {
        "bench": "checkpoints", "model": "gpt2/124m", "parameters": sum(p.numel() for p in task.model.parameters()),
        "checkpoint_bytes": size // 2, "step_seconds": round(statistics.median(quiet), 3),
        "lost_seconds": {
            "median": round(cost, 3), "min": round(min(lost), 3), "max": round(max(lost), 3), "runs": len(lost),
        },
        "share_at_one_a_minute": round(cost / 60, 5), "resume_seconds": round(again.began[0] - began, 2),
        "hardware": hardware(), "route": route.describe(),
    }  # fmt: skip


if __name__ == "__main__":
    command(__doc__, 5, measure)
