"""Which weights a run ends with: the last, the best by validation, or a mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from manyheads.errors import UserError
from manyheads.training.checkpoints import Checkpoints, mean_tensors
from manyheads.training.config import LOWER_IS_BETTER, TrainingConfig
from manyheads.training.ranks import Ranks
from manyheads.training.spread import Spread
from manyheads.training.state import Counters, load_weights, weights
from manyheads.training.task import Task


def validated(task: Task, over: Spread, ranks: Ranks) -> dict[str, float]:
    """The metrics of the validation data, to the last bit the same for all ranks, which decide by them."""
    task.model.eval()
    with torch.no_grad():
        values = over.compute(task.validate)
    task.model.train()
    return ranks.shared(lambda: values)


def watched(config: TrainingConfig, values: dict[str, float]) -> float:
    assert config.metric is not None
    if config.metric not in values:
        raise UserError(f"the validation has no metric {config.metric!r}; it has {', '.join(values)}")
    return values[config.metric]


def snapshot(task: Task, step: int, checkpoints: Checkpoints, over: Spread, ranks: Ranks) -> dict[str, Any]:
    """The weights of this step, written beside the checkpoints."""
    tensors = over.whole(weights(task.model))
    return ranks.shared(lambda: checkpoints.snapshot(step, tensors))


def judge(
    task: Task, config: TrainingConfig, counters: Counters, values: dict[str, float], checkpoints: Checkpoints,
    over: Spread, ranks: Ranks,
) -> None:  # fmt: skip
    """Keep the weights if they are the best so far."""
    counters.validated = counters.step
    if config.metric is None:
        return
    value = watched(config, values)
    if counters.best is None or _better(config, value, counters.best["value"]):
        counters.best = {"value": value, **snapshot(task, counters.step, checkpoints, over, ranks)}
        counters.without_best = 0
    else:
        counters.without_best += 1


def _better(config: TrainingConfig, value: float, than: float) -> bool:
    if math.isnan(than):  # which no comparison finds worse
        return not math.isnan(value)
    return value < than if config.metric in LOWER_IS_BETTER else value > than


def final_weights(
    task: Task, config: TrainingConfig, counters: Counters, moving: dict[str, Tensor], state: Path, over: Spread,
    ranks: Ranks,
) -> tuple[str, dict[str, float]]:  # fmt: skip
    """Put the final weights into the model; say which they are and what the validation says of them."""
    held = "last"
    earlier = [s for s in counters.snapshots if s["step"] < counters.step][-(config.average - 1) :]
    if config.average > 1 and earlier:
        last = over.whole(weights(task.model), everywhere=True)
        load_weights(task.model, mean_tensors([state / s["file"] for s in earlier], last))
        held = f"mean of {len(earlier) + 1}"
    if moving:
        load_weights(task.model, moving)
        held = "averaged"
    values = validated(task, over, ranks)
    best = counters.best
    if config.metric and best and _better(config, best["value"], watched(config, values)):
        load_weights(task.model, load_file(state / best["file"]))
        held, values = f"best (step {best['step']:,})", validated(task, over, ranks)
    task.model.eval()
    return held, values
