"""Estimate of the duration and memory of a training run, for the option `--dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.training.config import TrainingConfig

UTILIZATION = 0.3  # speed of training as a fraction of the machine's speed in matrix products
MAX_LABELS = 12  # maximum number of labels that the printed configuration shows


@dataclass(frozen=True)
class Plan:
    """Model and batch whose training cost is estimated.

    model  model to train; it may be on the meta device
    batch  size of a micro-batch in `unit`s ("token" or "image")
    items  number of units per epoch, if it is known before the data are read
    """

    model: nn.Module
    batch: int
    unit: str = "token"
    items: int | None = None


def estimate(recipe: str, config: Any, plan: Plan, compute: ComputeConfig) -> dict[str, Any]:
    """Return the whole configuration of a run, and its estimated training cost."""
    summary, unit = costs.summary(plan.model), plan.unit
    training: TrainingConfig = config.training
    flops = summary["flops"]["training"] / (summary["flops"]["tokens"][-1] if unit == "token" else 1)
    by_steps = None if training.steps is None else training.steps * training.accumulate * plan.batch
    by_epochs = None if training.epochs is None or plan.items is None else training.epochs * plan.items
    total = min((amount for amount in (by_steps, by_epochs) if amount is not None), default=None)
    rate = compute.products_per_second()
    seconds = flops / rate / UTILIZATION
    return {
        "recipe": recipe,
        "config": asdict(config),
        "model": _truncate_labels(summary["config"]),
        "parameters": summary["parameters"]["total"],
        "memory_gib": {"weights, gradients and Adam's moments": round(summary["memory"]["training"] / 2**30, 3)},
        "estimate": {
            f"flops_per_{unit}": flops,
            f"{unit}s": total,
            "hours": None if total is None else round(seconds * total / 3600, 2),
            f"minutes_per_million_{unit}s": round(seconds * 1e6 / 60, 1),
            "assuming": f"{UTILIZATION:.0%} of this machine's {rate / 1e9:,.0f} GFLOP/s for matrix products",
        },
        "device": compute.device,
    }


def _truncate_labels(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a model configuration whose list of labels is cut after `MAX_LABELS` labels, to keep the
    output short.
    """
    labels = config.get("labels", ())
    if len(labels) <= MAX_LABELS:
        return config
    return {**config, "labels": [*labels[:MAX_LABELS], f"... {len(labels) - MAX_LABELS:,} more"]}
