"""Steps common to all training runs. The package of each task contains the steps that differ."""

from __future__ import annotations

import json
import logging
import shlex
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch

from manyheads.core.config import TRAINING_PRECISIONS, Config
from manyheads.core.interface import Model
from manyheads.core.low_rank import PREFIX
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError
from manyheads.files import read_json, write_json
from manyheads.runs.checks import check_held_out, check_selection, check_settings, without_info
from manyheads.runs.estimate import Plan, estimate
from manyheads.runs.fitted_defaults import fit_to_data, keeping_best
from manyheads.runs.overrides import setting_words
from manyheads.runs.result import RunResult, example_command
from manyheads.runs.resuming import last_checkpoint, refuse_changes, refuse_other_data
from manyheads.training import own_runs
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.loop import Summary, train
from manyheads.training.objective import Objective
from manyheads.training.progress import LogCallback, ProgressCallback
from manyheads.training.record import Metrics, commit, write_result
from manyheads.training.run_directory import RUN, TRAIN, locked_run_directory, run_status
from manyheads.training.schedules import steps_per_epoch
from manyheads.versions import upgrade

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Any)


@dataclass(frozen=True)
class Run:
    """Options of `manyheads train` that all recipes support.

    A partial run is one of several runs that a recipe consists of, such as one row of an ablation table.

    given        the user's settings, by dotted key
    overrides    settings of the user that differ from the recipe, as saved in `result.json`
    precision    "float32" or "bf16"; None: float32
    reads        False: a dry run without data on this machine, which therefore reads none
    max_minutes  time after which the run stops, so that it can be resumed; does not affect the learning-rate schedule.
                 A partial run gets the remaining time of the whole run
    processes    number of local processes that the command requested
    progress     callback for the progress of training
    memory       the user's data in memory, by split
    callbacks    functions that receive each entry of the training log; one that returns False stops the run
    saved        entries of state/run.json from which the run can be resumed (`resuming.py`)
    own_data     True if the user gave data to a recipe that is not made for a certain data set
    changed      keys of the settings that the user changes when a run is resumed
    whole        for a partial run, the whole run, which the user resumes; otherwise None
    program      command that runs the recipe, if its name and settings follow
    """

    recipe: str
    out: Path
    init: str | None = None
    resume: bool = False
    dry_run: bool = False
    reads: bool = True
    max_minutes: float | None = None
    precision: str | None = None
    skip_bad_lines: bool = False
    compile: bool = False
    processes: int = 1
    whole: Run | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    progress: ProgressCallback | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    saved: Mapping[str, Any] = field(default_factory=dict)
    own_data: bool = False
    memory: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Sequence[LogCallback] = ()
    changed: Collection[str] = ()
    program: str = TRAIN

    @property
    def new(self) -> bool:
        """Return True for a run that starts with new weights only. A resumed run has the weights of its checkpoint."""
        return not self.resume and (self.init is None or bool(self.given.get("scratch")))

    @property
    def resume_command(self) -> str:
        """Return the command that resumes this run, or the whole run that this run is a part of."""
        whole = self.whole
        return f"{whole.command} --resume" if whole else f"{self.program} --resume {shlex.quote(str(self.out))}"

    @property
    def command(self) -> str:
        """Return the command that starts this run."""
        settings = (f"{key}={setting_words(value)}" for key, value in self.given.items())
        words = [*self.program.split(), self.recipe, *settings]
        for option, value in (("--out", self.out), ("--init", self.init), ("--precision", self.precision)):
            words += [option, str(value)] if value is not None else []
        for option, switched_on in (("--skip-bad-lines", self.skip_bad_lines), ("--compile", self.compile)):
            words += [option] if switched_on else []
        words += ["--processes", str(self.processes)] if self.processes > 1 else []
        return shlex.join(words)

    def part(self, name: str, begun: float) -> Run:
        """Return the options of a partial run, which trains in the subdirectory `name`.

        begun  time at which the whole run started (`time.monotonic()`)
        """
        out, left = self.out / name, self.max_minutes
        if left is not None:
            spent = distributed_context().broadcast(
                lambda: time.monotonic() - begun
            )  # all ranks must use the same remaining time
            left = max(0.0, left - spent / 60)
        return replace(self, out=out, resume=run_status(out) != "none", max_minutes=left, whole=self, saved={})

    def compute(self, threads: int | None) -> ComputeConfig:
        """Return the compute configuration of the run: device, precision and threads.

        `threads` is the recipe's setting.
        """
        if self.precision not in (None, *TRAINING_PRECISIONS):
            raise UserError(
                f"precision is {self.precision!r}; expected {' or '.join(TRAINING_PRECISIONS)} for training. int8 "
                "and auto are for trained models only (translate, classify, evaluate, ...)"
            )
        return prepare(self.precision or "float32", threads, self.compile)

    def refuse(self, keys: tuple[str, ...], reason: str, *, changed_only: bool = False) -> None:
        """Raise UserError if the user set an option that has no effect in this run.

        keys          options; an entry that ends in a dot, such as `model.`, stands for all options that begin with it
        changed_only  True: the recipe's own value is accepted, because `manyheads recipes` prints it
        """
        groups = tuple(key for key in keys if key.endswith("."))
        found = self.overrides if changed_only else self.given
        if idle := [key for key in found if key in keys or key.startswith(groups)]:
            raise UserError(f"{', '.join(idle)}: {reason}")


class Data(Protocol[D]):
    """Interface of the data of a run. The class `Source` (`data/sources/source.py`) implements it."""

    unit: ClassVar[str]

    def read(self) -> SplitData[D]: ...

    def summary_lines(self, splits: SplitData[D]) -> list[str]: ...

    def report(self, splits: SplitData[D]) -> str: ...

    def describe(self, splits: SplitData[D]) -> dict[str, Any]: ...


@dataclass
class Job(Generic[D]):
    """Model and training task of a run, built from its data.

    model     model that is trained. The training loop trains it as `task` with the settings `training`, or `fit` trains
              it without the loop
    score     function called after the model is saved, with the test data (or the validation data, for
              `scored=validation`). Its metrics are added to those of the last validation
    flops     training FLOPs per unit of the task (token, image, ...)
    identity  further values that identify the run, in addition to settings and data
    record    further entries of result.json; `score` may add entries
    close     function called at the end, even after an error
    """

    model: Model[Config]
    training: TrainingConfig
    score: Callable[[D], Metrics]
    objective: Objective | None = None
    fit: Callable[[], Summary] | None = None
    flops: float | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


def carry_out(
    run: Run,
    config: Any,
    data: Data[D],
    plan: Callable[[], Plan],
    build: Callable[[SplitData[D], ComputeConfig], Job[D]],
    *,
    may_change: tuple[str, ...] = (),
) -> dict[str, Any] | None:
    """Carry out the run of a recipe, from its settings to result.json.

    Returns the content of result.json; None if the run was stopped.

    plan        function that returns the model on the meta device, or the model of `--init`. It is called first, to
                report invalid settings before any data are read
    build       function that builds the task from the data. Called after seeding
    may_change  settings that only affect the use of the trained model, and may change when a run is resumed
    """
    check_settings(config, resume=run.resume)
    if run.dry_run:
        return _dry_run(run, config, data, plan(), build)
    commit()  # The commit is read now, because the source files may change before the run ends.
    compute = run.compute(config.threads)
    ranks = distributed_context()
    # The lock prevents other processes from training, evaluating or recording this run at the same time.
    with locked_run_directory(run.out, resume=run.resume) if ranks.first else nullcontext(), compute.settings():
        with without_info():  # The model of --init is loaded again for training, which logs the same lines.
            check_selection(plan().model, config.training, new=run.new)
        if run.saved and ranks.first and not run.resume:
            write_json(run.out / "state" / RUN, run.saved)  # so that --resume works before the first checkpoint
        before = last_checkpoint(run.out) if run.resume else {}
        if before:
            settings = {**settings_of(config, may_change), "init": run.init}
            refuse_changes(run.out, config, settings, before, given=run.given, changed=run.changed)
        with ranks.rank_zero_first():
            splits = data.read()
            description = data.describe(splits)
            refuse_other_data(run.out, description, before)
            if not run.resume:
                check_held_out(config, splits)
            if run.whole is None or not run.resume:
                log_splits(data, splits)
                logger.info(data.report(splits))
            torch.manual_seed(config.training.seed)
            job = build(splits, compute)
            job.model.origin = run.init
            if config.training.selects:
                job.flops = None  # Parts of the backward pass are left out.
        if ranks.first:
            own_runs.add(description)
        job.training = _session_training(run, job, before)
        try:
            identity = {**settings_of(config, may_change), "init": run.init,
                        "fingerprints": description["fingerprints"], **job.identity}  # fmt: skip
            split = getattr(config, "scored", "test")
            held = splits.known.get(split)
            job.record |= {} if held is None else {"scored": split}
            result = _trained(run, job, held, description, identity, compute)
            if result is not None and run.whole is None:
                result.next_command = example_command(run.out, splits.validation if held is None else held)
            return result
        finally:
            job.close()


def _dry_run(run: Run, config: Any, data: Data[Any], planned: Plan, build: Callable[..., Job[Any]]) -> dict[str, Any]:
    """Read the data and build the task as a run does, then return the settings and the estimated cost of the run."""
    compute = run.compute(config.threads)
    check_selection(planned.model, config.training, new=run.new)
    if not run.reads:
        return estimate(run.recipe, config, planned, compute)
    splits = data.read()
    check_held_out(config, splits)
    log_splits(data, splits)
    job = build(splits, compute)
    try:
        training = _session_training(run, job, {})
        check_selection(job.model, training)
        steps = None if job.objective is None else steps_per_epoch(training, len(job.objective.batches(0)))
        config, planned = replace(config, training=training), replace(planned, model=job.model)
        return estimate(run.recipe, config, planned, compute, steps, len(splits.train))
    finally:
        job.close()


def _trained(
    run: Run, job: Job[D], held: D | None, description: dict[str, Any], identity: dict[str, Any],
    compute: ComputeConfig,
) -> RunResult | None:  # fmt: skip
    """Train and save the model, evaluate it, and write result.json. Only rank 0 evaluates and writes result.json."""
    ranks = distributed_context()
    if job.fit is not None:
        summary = ranks.broadcast(job.fit)
    else:
        assert job.objective is not None
        settings = {"settings": {**run.saved["settings"], "training": job.training.as_dict()}} if run.saved else {}
        summary = train(
            job.objective, job.training, run.out, compute=compute, resume=run.resume, max_minutes=run.max_minutes,
            settings=identity, resume_command=run.resume_command, flops=job.flops,
            record={**run.saved, **settings, "record": {"data": description, **job.record}}, progress=run.progress,
            callbacks=run.callbacks,
        )  # fmt: skip
    if summary.status == "stopped":
        logger.info(summary.reason)
        return None
    return ranks.broadcast(lambda: _recorded(run, job, held, description, summary, compute))


def _recorded(
    run: Run, job: Job[D], held: D | None, description: dict[str, Any], summary: Summary, compute: ComputeConfig
) -> RunResult:
    if run.whole is not None and (scored := _scored(run, summary)):
        return RunResult(scored)
    validation = {name: {"value": value, "signature": "validation"} for name, value in summary.metrics.items()}
    try:
        metrics = validation | ({} if held is None else job.score(held))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted during evaluation; the model in {run.out} is complete. To evaluate it: {run.resume_command}"
        ) from None
    further: dict[str, Any] = {} if run.init is None else {"init": run.init}
    if job.training.selects:
        further["trained_parameters"] = sum(p.numel() for p in job.model.parameters() if p.requires_grad)
    result = write_result(
        run.out, recipe=run.recipe, overrides=run.overrides, data=description, metrics=metrics,
        wall_seconds=summary.seconds, flops=None if job.flops is None else job.flops * summary.tokens,
        parameters=sum(p.numel() for name, p in job.model.named_parameters() if PREFIX not in name),
        seed=job.training.seed, weights=summary.weights, steps=summary.step, target_tokens=summary.tokens,
        route=compute.describe(), validation=metrics if job.record.get("scored") == "validation" else validation,
        **distributed_context().shown, **further, **({"skipped": summary.skipped} if summary.skipped else {}),
        **job.record,
    )  # fmt: skip
    return RunResult(result)


def _scored(run: Run, summary: Summary) -> dict[str, Any] | None:
    """Return the content of result.json if an earlier session evaluated the same weights with the same settings, else
    None.
    """
    path = run.out / "result.json"
    result = upgrade(read_json(path, "delete it, and the model is evaluated again")) if path.exists() else {}
    same = result.get("steps") == summary.step and result.get("wall_seconds") == round(summary.seconds, 1)
    return result if same and result["overrides"] == json.loads(json.dumps(dict(run.overrides))) else None


def located(config: Any, run: Run) -> dict[str, Any]:
    """Return the keyword arguments of `Source` that describe the user's data: files, seed and treatment of faulty
    items.
    """
    return {
        "data": config.data, "validation": config.validation, "test": getattr(config, "test", None),
        "fraction": getattr(config, "held_out", None),
        "skip_bad_lines": run.skip_bad_lines, "seed": config.training.seed, "memory": run.memory,
    }  # fmt: skip


def _session_training(run: Run, job: Job[Any], before: Mapping[str, Any]) -> TrainingConfig:
    """Return the training configuration of this session: the resumed run's, or the recipe's, fitted to the data.

    before  last checkpoint of the resumed run; empty for a new run
    """
    if before:
        return job.training.resumed(before["config"], run.changed)
    if (objective := job.objective) is None:
        return job.training
    training = fit_to_data(job.training, run.given, lambda: len(objective.batches(0)), own_data=run.own_data)
    keeps_best = run.own_data and not run.whole and "training.metric" not in run.given
    return keeping_best(training, objective.metrics) if keeps_best else training


def log_splits(data: Data[D], splits: SplitData[D]) -> None:
    """Log the files of each data split, the held-out data and the number of skipped items."""
    for line in data.summary_lines(splits):
        logger.info(line)
    # Each key contains a file name. So a file that is used both as training data and as held-out data is reported only
    # once.
    skips = {reason: count for split in splits.known.values() for reason, count in split.skips.items()}
    for reason, count in skips.items():
        logger.info(f"skipped {data.unit}: {count:,} of {reason}")


def settings_of(config: Any, may_change: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings that identify a run.

    Data paths and settings that affect only the use of the result are excluded.
    """
    apart = {"training", "threads", "scored", "data", "validation", "test", "held_out", *may_change}
    return {name: value for name, value in asdict(config).items() if name not in apart}


@contextmanager
def log_warnings() -> Iterator[None]:
    """Turn the warnings of libraries into log messages."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        logger.warning(f"{warning.message}")
