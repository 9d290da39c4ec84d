"""Estimate of the duration and memory of a training run, for the option `--dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from manyheads.analysis import costs
from manyheads.core.config import TRAINING_PRECISIONS, Config
from manyheads.core.interface import Model
from manyheads.core.runtime import ComputeConfig
from manyheads.displays import Record
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.planning import batch_shape
from manyheads.runs.recipe import RunConfig
from manyheads.runs.simulation import Machine, simulate
from manyheads.training.config import TrainingConfig
from manyheads.training.optimizers import state_numbers
from manyheads.training.schedules import run_length

UTILIZATION = 0.3  # speed of training as a fraction of the machine's speed in matrix products
# The memory for activations of a large batch is extrapolated from batches with these numbers of items.
SIMULATED_ROWS = (8, 16)
MAX_TOKENS = 4096  # A batch of texts with up to this number of tokens is simulated as a whole.
MAX_LABELS = 12  # maximum number of labels that the printed configuration shows


@dataclass(frozen=True)
class Plan:
    """Model and batch whose training cost is estimated.

    model  model to train; it may be on the meta device
    batch  size of a micro-batch in `unit`s ("token" or "image")
    """

    model: Model[Config]
    batch: int
    unit: str = "token"


def estimate(
    recipe: str,
    config: RunConfig,
    plan: Plan,
    compute: ComputeConfig,
    epoch: int | None = None,
    items: int | None = None,
) -> JsonObject:
    """Return the whole configuration of a run, and its estimated training cost.

    epoch  number of steps in an epoch; None if no data were read
    items  number of training items; None if no data were read
    """
    summary, unit = costs.summary(plan.model), plan.unit
    training: TrainingConfig = config.training
    flops = summary["flops"]["training"] / (summary["flops"]["tokens"][-1] if unit == "token" else 1)
    steps = training.steps if epoch is None else run_length(training, epoch)
    total = None if steps is None else steps * training.accumulate * plan.batch
    if total and items and training.epochs and unit == "image":  # The last batch of an epoch may be smaller.
        total = min(total, training.epochs * items * (plan.batch // vars(config)["batch_items"]))
    rate = compute.products_per_second()
    seconds = flops / rate / UTILIZATION
    return Record({
        "recipe": recipe,
        "config": asdict(config),
        "model": _truncate_labels(summary["config"]),
        "parameters": summary["parameters"]["total"],
        "memory_gib": {name: round(size / 2**30, 3) for name, size in _memory(plan.model, config, compute).items()},
        "estimate": {
            f"flops_per_{unit}": flops,
            f"{unit}s": total,
            "training_items": items,
            "steps": steps,
            "steps_per_epoch": epoch,
            "steps_between_validations": training.validate_every or epoch,
            "hours": None if total is None else round(seconds * total / 3600, 2),
            f"minutes_per_million_{unit}s": round(seconds * 1e6 / 60, 1),
            "assuming": f"{UTILIZATION:.0%} of this machine's {rate / 1e9:,.0f} GFLOP/s for matrix products",
        },
        "device": compute.device,
    })  # fmt: skip


def _memory(model: Model[Config], config: RunConfig, compute: ComputeConfig) -> dict[str, float]:
    """Return the bytes of memory by purpose, such as "weights". Activations are estimated as by `manyheads plan`."""
    held = costs.memory(model, state_numbers(config.training))
    weights, state = held["weights"], held["optimizer"]
    purposes = {"weights": weights, "gradients": held["training"] - weights - state, "optimizer state": state}
    machine = Machine(dict.fromkeys(TRAINING_PRECISIONS, 1.0), 1.0)  # Only the memory matters.

    def activations(rows: int) -> int:
        return simulate(
            model, rows, lengths, machine, precision=compute.precision, fused=compute.device_type == "cuda",
            checkpointing=config.training.checkpointing,
        ).activations  # fmt: skip

    try:
        rows, lengths = batch_shape(model, config)
        if rows <= SIMULATED_ROWS[1] or (lengths and rows * lengths[-1] <= MAX_TOKENS):
            purposes["activations"] = activations(rows)
        else:  # Extrapolate linearly, because the simulation of a large batch would take minutes.
            few, more = map(activations, SIMULATED_ROWS)
            purposes["activations"] = few + (more - few) * (rows - SIMULATED_ROWS[0]) // SIMULATED_ROWS[0]
    except UserError:  # The size of the activations depends on the data and cannot be simulated.
        return {**purposes, "sum without activations": sum(purposes.values())}
    return {**purposes, "sum": sum(purposes.values())}


def _truncate_labels(config: JsonObject) -> JsonObject:
    """Return a copy of a model configuration with at most `MAX_LABELS` labels, so that the printed output is short."""
    labels = config.get("labels", ())
    if len(labels) <= MAX_LABELS:
        return config
    return {**config, "labels": [*labels[:MAX_LABELS], f"... {len(labels) - MAX_LABELS:,} more"]}
