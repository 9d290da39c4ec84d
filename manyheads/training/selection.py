"""Validation, and selection of the final weights of a run: last, best by validation, or a mean."""

from __future__ import annotations

import math

import torch
from safetensors.torch import load_file

from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.training.checkpoints import mean_tensors
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed_map import divide_batches
from manyheads.training.objective import Objective
from manyheads.training.session import TrainingSession
from manyheads.training.state import load_weights, weights


def check_metric(objective: Objective, config: TrainingConfig) -> None:
    """Raise UserError if the objective does not measure the metric that selects the final weights."""
    if config.metric is not None and config.metric not in objective.metrics:
        names = ", ".join(objective.metrics)
        raise UserError(f"the validation has no metric {config.metric!r}: expected one of {names}")


def validation_metrics(session: TrainingSession) -> dict[str, float]:
    """Return the metrics of the current weights on the validation split.

    The ranks divide the batches among them, and all ranks get the same values.
    """
    session.model.eval()
    with torch.no_grad(), divide_batches(same_calls=session.config.shard):
        values = session.strategy.compute(session.objective.validate)
    session.model.train()
    assert values.keys() == session.objective.metrics.keys(), (
        "the metrics of the validation must match those that the objective declares"
    )
    return session.ranks.broadcast(lambda: values)


def validate(session: TrainingSession) -> dict[str, float]:
    """Validate the current weights, save them if they are the best so far, and return their metrics."""
    counters, values = session.counters, validation_metrics(session)
    counters.validated = counters.step
    update_best(session, values)
    best_steps = {counters.best["step"]} if counters.best else set()
    session.validations = {step: metrics for step, metrics in session.validations.items() if step in best_steps}
    session.validations[counters.step] = values
    return values


def update_best(session: TrainingSession, values: dict[str, float]) -> None:
    """Save the current weights if their metrics are the best so far.

    Otherwise increase the number of validations in a row without an improvement.
    """
    config, counters = session.config, session.counters
    if config.metric is None:
        return
    monitored_value = values[config.metric]
    if counters.best is None or _is_better(session, monitored_value, counters.best["value"]):
        counters.best = {"value": monitored_value, **snapshot(session)}
        counters.without_best = 0
    else:
        counters.without_best += 1


def snapshot(session: TrainingSession) -> JsonObject:
    """Write the current weights into a file in the checkpoint directory. Return the step and the file name."""
    tensors = session.strategy.full_tensors(weights(session.model))
    return session.ranks.broadcast(lambda: session.checkpoints.snapshot(session.counters.step, tensors))


def add_snapshot(session: TrainingSession) -> None:
    """Save the current weights, because the final weights will be the mean of the last `average` saved weights.

    Drops the oldest saved weights if there are more than `average`.
    """
    snapshots = session.counters.snapshots
    snapshots.append(snapshot(session))
    del snapshots[: -session.config.average]


def _is_better(session: TrainingSession, value: float, than: float) -> bool:
    """Return True if the metric value `value` is better than the value `than`.

    The metric that selects the final weights says if higher or lower is better.
    """
    if math.isnan(than):  # Any number is better than NaN, the metric of a model whose training diverged.
        return not math.isnan(value)
    assert session.config.metric is not None
    return value < than if session.objective.metrics[session.config.metric] == "lower" else value > than


def final_weights(session: TrainingSession) -> tuple[str, dict[str, float]]:
    """Load the final weights into the model. Return a description of these weights, and their validation metrics."""
    config, counters, model, strategy = session.config, session.counters, session.model, session.strategy
    state, description = session.out / "state", "last"
    earlier = [s for s in counters.snapshots if s["step"] < counters.step][-(config.average - 1) :]
    if config.average > 1 and earlier:
        last = strategy.full_tensors(weights(model), on_all_ranks=True)
        load_weights(model, mean_tensors([state / s["file"] for s in earlier], last))
        description = f"mean of {len(earlier) + 1}"
    if session.ema_weights:
        load_weights(model, session.ema_weights)
        description = "averaged"
    values = session.validations.get(counters.step) if description == "last" else None
    values, best = values or validation_metrics(session), counters.best
    if config.metric and best and _is_better(session, best["value"], values[config.metric]):
        load_weights(model, load_file(state / best["file"]))
        description = f"best (step {best['step']:,})"
        values = session.validations.get(best["step"]) or validation_metrics(session)
    model.eval()
    return description, values
