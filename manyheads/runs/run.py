"""Run of a recipe, from its settings to result.json.

This module contains the steps that all recipes have in common. The other steps are methods of a task (`task.py`).
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Generic

import torch

from manyheads.core.config import Config, as_dict
from manyheads.core.interface import Model
from manyheads.core.low_rank import PREFIX
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.splits import SplitData, working_directory
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject, read_json, write_json
from manyheads.runs.checks import check_held_out, check_metric, check_selection, without_info
from manyheads.runs.estimate import estimate
from manyheads.runs.fitted_defaults import fit_to_data, keeping_best
from manyheads.runs.options import Run
from manyheads.runs.recipe import DataConfig, Recipe, RunConfig
from manyheads.runs.result import RunResult
from manyheads.runs.resuming import last_checkpoint, refuse_changes, refuse_other_data
from manyheads.runs.task import C, D, Data, Job, Report, Task
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.loop import Summary, train
from manyheads.training.record import add_own_run, commit, write_result
from manyheads.training.run_directory import RUN, locked_run_directory
from manyheads.training.schedules import steps_per_epoch
from manyheads.training.tensor_parallel import check_degree
from manyheads.versions import upgrade

logger = logging.getLogger(__name__)


def task_of(recipe: Recipe) -> type[Task[Any, Any]] | Callable[[RunConfig, Run], Report]:
    """Import and return the class or function that carries out a recipe."""
    module, name = recipe.task.split(":")
    task: type[Task[Any, Any]] | Callable[[RunConfig, Run], Report] = vars(import_module(module))[name]
    return task


def train_recipe(recipe: Recipe, config: RunConfig, run: Run) -> Report:
    """Train a recipe with the given configuration, and return the content of its result.json, or another report.

    A recipe with a task returns the result of `carry_out`. A recipe with a function returns the function's report.
    """
    task = task_of(recipe)
    return carry_out(task(config, run)) if isinstance(task, type) else task(config, run)


def planned_model(recipe: Recipe) -> Model[Config]:
    """Return the model that a recipe trains, on the meta device, that is, without weights in memory.

    Raises UserError if the recipe does not train a single model.
    """
    task = task_of(recipe)
    if not isinstance(task, type):
        raise UserError("this recipe does not train a single model; give a model instead")
    return task(recipe.config, Run(recipe.task, Path())).planned_model()


@dataclass
class Built(Generic[D]):
    """Data and job of a run.

    description  description of the data, for result.json
    """

    splits: SplitData[D]
    description: JsonObject
    job: Job


def carry_out(task: Task[C, D]) -> JsonObject | None:
    """Carry out the run of a task: read the data, build, train and save the model, score it, and write result.json.

    Returns the content of result.json; None if the run was stopped. A dry run returns the settings and the cost.
    """
    run, config, ranks = task.run, task.config, distributed_context()
    task.check()
    check_metric(config.training, resume=run.resume)
    compute = run.compute(config.threads)
    if run.dry_run:
        with _closing(task):
            return _dry_run(task, compute)
    commit()  # Read the Git commit of the source code now, because the files may change before the run ends.
    with _run_directory(run), compute.settings(), _closing(task):
        with without_info():  # This call loads the model of --init. It is loaded again below, with the same log lines.
            _check_model(run, task.plan().model, config.training)
        if run.saved and ranks.first and not run.resume:
            write_json(run.out / "state" / RUN, run.saved)  # so that --resume works before the first checkpoint
        before = last_checkpoint(run.out) if run.resume else {}
        identity = {**settings_of(config, task.may_change), "init": run.init}
        if before:
            refuse_changes(run.out, config, identity, before, given=run.given, changed=run.changed)
        with ranks.rank_zero_first():
            built = _build(task, before, compute)
        if ranks.first:
            add_own_run(built.description)
        identity |= {"fingerprints": built.description["fingerprints"], **built.job.identity}
        summary = _train(task, built, identity, compute)
        if summary.status == "stopped":
            logger.info(summary.reason)
            return None
        return ranks.broadcast(lambda: _recorded(task, built, summary, compute))


@contextmanager
def _run_directory(run: Run) -> Iterator[None]:
    """Lock the run directory during the `with` block, so that no other process trains or evaluates this run."""
    with locked_run_directory(run.out, resume=run.resume) if distributed_context().first else nullcontext():
        yield


@contextmanager
def _closing(task: Task[C, D]) -> Iterator[None]:
    try:
        yield
    finally:
        task.close()


def _build(task: Task[C, D], before: JsonMapping, compute: ComputeConfig) -> Built[D]:
    """Read the data, and build the model and its training.

    before  last checkpoint of the resumed run; empty for a new run
    """
    run, data = task.run, task.data()
    splits = data.read()
    description = {} if run.dry_run else {**data.describe(splits), "directory": working_directory(run.out)}
    refuse_other_data(run.out, description, before)
    if not run.resume:
        check_held_out(task.config, splits)
    if run.whole is None or not run.resume:
        log_splits(data, splits)
        if not run.dry_run:
            report, *warnings = data.report(splits).rstrip().split("\nwarning: ")
            logger.info(f"{report}\n")
            for warning in warnings:
                logger.warning(warning)
    torch.manual_seed(task.config.training.seed)
    job = task.build(splits, compute)
    job.model.origin = run.init
    if job.training.selects:
        job.flops = None  # The estimate is wrong for frozen weights, for which parts of the backward pass are left out.
    job.training = _session_training(run, job, before)
    return Built(splits, description, job)


def _dry_run(task: Task[C, D], compute: ComputeConfig) -> JsonObject:
    """Read the data and build the model as a run does, then return the settings and the estimated cost of the run."""
    run, config, planned = task.run, task.config, task.plan()
    _check_model(run, planned.model, config.training)
    if not run.reads:
        return estimate(run.recipe, config, planned, compute)
    built = _build(task, {}, compute)
    job, training = built.job, built.job.training
    _check_model(run, job.model, training)
    steps = steps_per_epoch(training, len(job.objective.batches(0)))
    config, planned = replace(config, training=training), replace(planned, model=job.model)
    return estimate(run.recipe, config, planned, compute, steps, len(built.splits.train))


def _train(task: Task[C, D], built: Built[D], identity: JsonMapping, compute: ComputeConfig) -> Summary:
    run, job = task.run, built.job
    settings = {"settings": {**run.saved["settings"], "training": as_dict(job.training)}} if run.saved else {}
    job.record |= {} if _held(task, built.splits) is None else {"scored": _scored_split(task.config)}
    return train(
        job.objective, job.training, run.out, compute=compute, resume=run.resume, max_minutes=run.max_minutes,
        settings=identity, resume_command=run.resume_command, flops=job.flops,
        record={**run.saved, **settings, "record": {"data": built.description, **job.record}}, progress=run.progress,
        callbacks=run.callbacks,
    )  # fmt: skip


def _check_model(run: Run, model: Model[Config], training: TrainingConfig) -> None:
    """Raise UserError if settings of the training do not fit the model or the number of processes."""
    check_selection(model, training, new=run.new)
    degree = training.tensor_parallel
    check_degree(model, degree, degree if run.dry_run else max(run.processes, distributed_context().world))


def _scored_split(config: RunConfig) -> str:
    return config.scored if isinstance(config, DataConfig) else "test"


def _held(task: Task[C, D], splits: SplitData[D]) -> D | None:
    """Return the data on which the final model is scored; None if there are none."""
    return splits.known.get(_scored_split(task.config))


def _recorded(task: Task[C, D], built: Built[D], summary: Summary, compute: ComputeConfig) -> RunResult:
    """Score the model and write result.json. Only rank 0 does so."""
    run, job, held = task.run, built.job, _held(task, built.splits)
    if run.whole is not None and (scored := _scored(run, summary)):
        return RunResult(scored)
    validation = {name: {"value": value, "signature": "validation"} for name, value in summary.metrics.items()}
    try:
        job.record |= task.calibrate(built.splits.validation, compute)
        metrics = validation | ({} if held is None else task.score(held, compute))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted during evaluation; the model in {run.out} is complete. To evaluate it: {run.resume_command}"
        ) from None
    model = job.model
    further: JsonObject = {} if run.init is None else {"init": run.init}
    if job.training.selects:
        further["trained_parameters"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    result = RunResult(write_result(
        run.out, recipe=run.recipe, overrides=run.overrides, data=built.description, metrics=metrics,
        wall_seconds=summary.seconds, flops=None if job.flops is None else job.flops * summary.tokens,
        parameters=sum(p.numel() for name, p in model.named_parameters() if PREFIX not in name),
        seed=job.training.seed, weights=summary.weights, steps=summary.step, target_tokens=summary.tokens,
        unit=job.objective.unit, route=compute.describe(),
        validation=metrics if job.record.get("scored") == "validation" else validation,
        **distributed_context().shown, **further, **({"skipped": summary.skipped} if summary.skipped else {}),
        **job.record,
    ))  # fmt: skip
    if run.whole is None:
        words = task.example(built.splits.validation if held is None else held)
        result.next_command = shlex.join(["manyheads", words[0], str(run.out), *words[1:]]) if words else ""
    return result


def _scored(run: Run, summary: Summary) -> JsonObject | None:
    """Return the content of an existing result.json if it describes the same weights and settings; otherwise None."""
    path = run.out / "result.json"
    result = upgrade(read_json(path, "delete it, and the model is evaluated again")) if path.exists() else {}
    same = result.get("steps") == summary.step and result.get("wall_seconds") == round(summary.seconds, 1)
    return result if same and result["overrides"] == json.loads(json.dumps(dict(run.overrides))) else None


def _session_training(run: Run, job: Job, before: JsonMapping) -> TrainingConfig:
    """Return the training configuration of this session.

    A resumed run keeps its configuration. A new run has the configuration of the recipe, fitted to the data.

    before  last checkpoint of the resumed run; empty for a new run
    """
    if before:
        return job.training.resumed(before["config"], run.changed)
    training = fit_to_data(job.training, run.given, lambda: len(job.objective.batches(0)), own_data=run.own_data)
    keeps_best = run.own_data and not run.whole and "training.metric" not in run.given
    return keeping_best(training, job.objective.metrics) if keeps_best else training


def log_splits(data: Data[D], splits: SplitData[D]) -> None:
    """Log the files of each data split, the held-out data and the number of skipped items."""
    for line in data.summary_lines(splits):
        logger.info(line)
    # Merge the skips of all splits by file and reason, so that a file from which validation data were held out is
    # reported only once.
    skips = {reason: count for split in splits.known.values() for reason, count in split.skips.items()}
    for reason, count in skips.items():
        logger.info(f"skipped {data.unit}: {count:,} of {reason}")


def settings_of(config: RunConfig, may_change: tuple[str, ...]) -> JsonObject:
    """Return the settings that identify a run. A run cannot be resumed with other values of these settings.

    Data paths are excluded, because the fingerprints of the data identify them.

    may_change  settings to exclude, which only affect the use of the trained model
    """
    apart = {"training", "threads", "scored", "data", "validation", "test", "held_out", *may_change}
    return {name: value for name, value in asdict(config).items() if name not in apart}
