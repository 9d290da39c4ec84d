"""Comparison of architectures on equal data: table 2 of Vaswani 2017 with small models and a small training budget."""

from __future__ import annotations

import logging
import time
from dataclasses import fields, replace
from typing import Any

from manyheads.analysis import costs
from manyheads.errors import UserError
from manyheads.files import read_json, write_json
from manyheads.runs.ablation import Rows, ablate
from manyheads.runs.fitted_defaults import fit_to_data
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_mapping
from manyheads.runs.resuming import last_checkpoint
from manyheads.runs.run import carry_out
from manyheads.tasks.translation.recipes import TranslationConfig
from manyheads.tasks.translation.task import Translation
from manyheads.training.distributed import distributed_context
from papers.rivals.recipes import RIVAL_ROWS, RivalsConfig

logger = logging.getLogger("manyheads")  # The command prints the messages of this logger.

CHECKPOINTS = 10  # number of checkpoints that are scored
SPAN = 26  # ratio of the steps of the last checkpoint to those of the first

COLUMNS = {"bleu_moses_lc": "BLEU", "loss": "loss"}
SIZES = {"parameters": "parameters", "active_non_embedding": "active", "flops": "FLOPs"}


def train(config: RivalsConfig, run: Run) -> str | dict[str, Any] | None:
    """Train the model of every row, and return the table of results. The user's settings override the rows'."""
    run.refuse(("preset",), "each row has its own preset; choose rows, such as rows=lstm,transformer")
    if config.training.steps is None or config.training.minutes is not None:
        raise UserError("expected training.steps as the only limit: checkpoints are at fractions of the steps")
    # The warm-up is fitted to the whole run. For its parts, it counts as given.
    training = fit_to_data(config.training, run.given, lambda: 1, own_data=False)
    values = {f.name: getattr(config, f.name) for f in fields(TranslationConfig)}
    base = TranslationConfig(**values | {"training": training})
    rows: Rows = {
        name: {key: value for key, value in RIVAL_ROWS[name].items() if key not in run.given} for name in config.rows
    }
    for changes in rows.values():  # An invalid row is reported before the first one is trained.
        Translation(apply(base, from_mapping(changes)), run).planned_model()
    if run.dry_run:
        return {"rows": {name: _estimate(apply(base, from_mapping(changes)), run) for name, changes in rows.items()}}
    # The rows do not depend on each other.
    overrides = {key: value for key, value in run.overrides.items() if key != "rows"}
    return ablate(rows, base, replace(run, overrides=overrides), _train_row, COLUMNS, SIZES)


def checkpoints(steps: int) -> list[int]:
    """Return the numbers of steps at which a model is scored, in equal ratios; the last is `steps`.

    >>> checkpoints(2600)
    [100, 144, 206, 296, 425, 611, 878, 1260, 1810, 2600]
    """
    return sorted({max(1, round(steps * SPAN ** (i / (CHECKPOINTS - 1) - 1))) for i in range(CHECKPOINTS)})


def _train_row(config: TranslationConfig, run: Run) -> dict[str, Any] | None:
    """Train a model up to each checkpoint in turn, and score its averaged weights there.

    Returns the content of result.json, with an entry `curve` for all checkpoints; None if the run was stopped.
    """
    assert config.training.steps is not None
    given = {**run.given, "training.warmup": config.training.warmup}
    begun, ranks, path = time.monotonic(), distributed_context(), run.out / f"curve-{config.scored}.json"
    hint = "delete it; the checkpoints so far are then left out"
    curve: list[dict[str, Any]] = ranks.broadcast(lambda: read_json(path, hint) if path.exists() else [])
    trained = ranks.broadcast(lambda: last_checkpoint(run.out).get("step", 0))
    scored, last = max((entry["step"] for entry in curve), default=0), config.training.steps
    result: dict[str, Any] | None = None
    for step in [step for step in checkpoints(last) if step > scored and step >= trained] or [last]:
        part = replace(run.part("", begun), whole=run.whole, given=given, changed=(*run.changed, "steps"))
        training = replace(config.training, steps=step)
        result = carry_out(Translation(replace(config, training=training), part))
        if result is None:
            return None
        scores = {name: metric["value"] for name, metric in result["metrics"].items()}
        counts = {name: result[name] for name in ("target_tokens", "flops")}
        entry = {"step": result["steps"], "seconds": result["wall_seconds"], **counts, **scores}
        curve = [*(earlier for earlier in curve if earlier["step"] < entry["step"]), entry]
        active = costs.active_parameters(Translation(config, run).planned_model())
        result |= {"active_non_embedding": active, "curve": curve}
        if ranks.first:
            write_json(path, curve)
            write_json(run.out / "result.json", result)
        logger.info(f"{run.out.name}, step {step:,}: {' '.join(f'{name} {scores.get(name)}' for name in COLUMNS)}")
    return result


def _estimate(config: TranslationConfig, run: Run) -> dict[str, Any]:
    """Return the size of a row and the estimated duration of its training."""
    task = Translation(config, run)
    plan, active = carry_out(task) or {}, costs.active_parameters(task.planned_model())
    counts = {"parameters": plan["parameters"], "active_non_embedding": active}
    return {"preset": config.preset, **counts, "hours": plan["estimate"]["hours"]}
