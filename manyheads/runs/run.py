"""How a recipe is run: the skeleton that all runs share. What differs stands in the room of each task."""

from __future__ import annotations

import json
import logging
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import nn

from manyheads.core.config import TRAINING_PRECISIONS, with_defaults
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError
from manyheads.files import read_json
from manyheads.runs.estimate import Plan, estimate
from manyheads.runs.overrides import setting_words
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.loop import Summary, train
from manyheads.training.progress import ProgressCallback
from manyheads.training.record import Metrics, commit, write_result
from manyheads.training.run_directory import locked_run_directory, run_status
from manyheads.training.task import Task

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Any)


@dataclass(frozen=True)
class Run:
    """The options of `manyheads train` that every recipe understands.

    given        what the user has set, by dotted key; `overrides`: what of it differs from the recipe, as `result.json`
                 keeps it
    precision    "float32" or "bf16"; None: float32
    max_minutes  stop after so long, resumable; never shapes a schedule. Of a part: what the whole has left
    processes    of this machine, that the command was asked for
    progress     receives the progress of the training
    whole        the run that this one is a part of, which is what the user resumes
    """

    recipe: str
    out: Path
    init: str | None = None
    resume: bool = False
    dry_run: bool = False
    max_minutes: float | None = None
    precision: str | None = None
    skip_bad_lines: bool = False
    compile: bool = False
    processes: int = 1
    whole: Run | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    progress: ProgressCallback | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def resume_command(self) -> str:
        """The command that goes on with this run."""
        if self.whole is not None:
            return self.whole.resume_command
        settings = (f"{key}={setting_words(value)}" for key, value in self.given.items())
        words = ["manyheads", "train", self.recipe, *settings]
        for option, value in (("--out", self.out), ("--init", self.init), ("--precision", self.precision)):
            words += [option, str(value)] if value is not None else []
        for option, switched_on in (("--skip-bad-lines", self.skip_bad_lines), ("--compile", self.compile)):
            words += [option] if switched_on else []
        words += ["--processes", str(self.processes)] if self.processes > 1 else []
        return shlex.join([*words, "--resume"])

    def part(self, name: str, begun: float) -> Run:
        """A run in a directory of its own below this one, which began at `begun` (`time.monotonic()`)."""
        out, left = self.out / name, self.max_minutes
        if left is not None:
            spent = distributed_context().broadcast(
                lambda: time.monotonic() - begun
            )  # they must agree on when they are to stop
            left = max(0.0, left - spent / 60)
        return replace(self, out=out, resume=run_status(out) != "none", max_minutes=left, whole=self)

    def compute(self, threads: int | None) -> ComputeConfig:
        """How to compute: `threads` is the recipe's setting."""
        if self.precision not in (None, *TRAINING_PRECISIONS):
            raise UserError(
                f"precision is {self.precision!r}: a model is trained in {' or '.join(TRAINING_PRECISIONS)}; int8 "
                "and auto are for using a trained one (translate, classify, evaluate, ...)"
            )
        return prepare(self.precision or "float32", threads, self.compile)

    def refuse(self, keys: tuple[str, ...], reason: str) -> None:
        """Raises UserError where the user has set what nothing would heed; a key that ends in a dot is a group."""
        idle = [key for key in self.given if key in keys or key.startswith(tuple(k for k in keys if k.endswith(".")))]
        if idle:
            raise UserError(f"{', '.join(idle)}: {reason}")


class Data(Protocol[D]):
    """A run's data, as a `Source` (`data/source.py`) gives them."""

    unit: ClassVar[str]

    def peek(self) -> Any: ...

    def read_as_before(self, fingerprints: Mapping[str, str]) -> tuple[Self, SplitData[D]]: ...

    def told(self, splits: SplitData[D]) -> list[str]: ...

    def report(self, splits: SplitData[D]) -> str: ...

    def describe(self, splits: SplitData[D]) -> dict[str, Any]: ...


@dataclass
class Job(Generic[D]):
    """What a room makes of a run's data.

    model     what is trained, by the loop as `task` with the settings `training`, or by `fit` at once
    score     called when the model is saved, with the test data, or the validation data with `scored=validation`; its
              metrics join those of the last validation
    flops     of the training on one of what the task counts (its `unit`): a token, an image, ...
    identity  what beside the settings and the data would make this another run
    record    what else goes into result.json; `score` may add to it
    close     called at the end, whatever happened
    """

    model: nn.Module
    training: TrainingConfig
    score: Callable[[D], Metrics]
    task: Task | None = None
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
    beside: tuple[str, ...] = (),
) -> dict[str, Any] | None:
    """The run of a recipe, from its settings to result.json, which is returned; None where it was stopped.

    plan    the model as it will be, without memory, or that of `--init`; told with --dry-run, and made before anything
            is read, so that a wrong setting is told at once
    build   the task, from the data; the dice have been seeded
    beside  settings that are about the use of the model, so that a resume may have others
    """
    if run.dry_run:
        data.peek()
        return estimate(run.recipe, config, plan(), run.compute(config.threads))
    commit()  # that which computes: by its end there may be another
    compute = run.compute(config.threads)
    ranks = distributed_context()
    # nobody else trains, scores or records it meanwhile
    with locked_run_directory(run.out, resume=run.resume) if ranks.first else nullcontext(), compute.settings():
        if run.init is None:
            plan()
        with ranks.rank_zero_first():
            data, splits = data.read_as_before(_fingerprints(run.out) if run.resume else {})
            log_splits(data, splits)
            logger.info(data.report(splits))
            torch.manual_seed(config.training.seed)
            description = data.describe(splits)
            job = build(splits, compute)
        try:
            identity = {**settings_of(config, beside), "init": run.init,
                        "fingerprints": description["fingerprints"], **job.identity}  # fmt: skip
            held = splits.validation if getattr(config, "scored", "test") == "validation" else splits.test
            return _trained(run, job, held, description, identity, compute, partial(with_defaults, config))
        finally:
            job.close()


def _trained(
    run: Run, job: Job[D], held: D | None, description: dict[str, Any], identity: dict[str, Any],
    compute: ComputeConfig, upgrade: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, Any] | None:  # fmt: skip
    """Train, save, score and record: the last two are rank 0's."""
    ranks = distributed_context()
    if job.fit is not None:
        summary = ranks.broadcast(job.fit)
    else:
        assert job.task is not None
        summary = train(
            job.task, job.training, run.out, compute=compute, resume=run.resume, max_minutes=run.max_minutes,
            settings=identity, upgrade=upgrade, resume_command=run.resume_command, flops=job.flops,
            progress=run.progress,
        )  # fmt: skip
    if summary.status == "stopped":
        logger.info(summary.reason)
        return None
    return ranks.broadcast(lambda: _recorded(run, job, held, description, summary, compute))


def _recorded(
    run: Run, job: Job[D], held: D | None, description: dict[str, Any], summary: Summary, compute: ComputeConfig
) -> dict[str, Any]:
    if run.whole is not None and (scored := _scored(run, summary)):
        return scored
    metrics = {name: {"value": value, "signature": "validation"} for name, value in summary.metrics.items()}
    try:
        metrics |= {} if held is None else job.score(held)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted while scoring; the model in {run.out} is complete, this scores it: {run.resume_command}"
        ) from None
    init = {} if run.init is None else {"init": run.init}
    return write_result(
        run.out, recipe=run.recipe, overrides=run.overrides, data=description, metrics=metrics,
        wall_seconds=summary.seconds, flops=None if job.flops is None else job.flops * summary.tokens,
        parameters=sum(p.numel() for p in job.model.parameters()), seed=job.training.seed,
        weights=summary.weights, steps=summary.step, target_tokens=summary.tokens, route=compute.describe(),
        **distributed_context().shown, **init, **({"skipped": summary.skipped} if summary.skipped else {}),
        **job.record,
    )  # fmt: skip


def _scored(run: Run, summary: Summary) -> dict[str, Any] | None:
    """What a session before this one has recorded of the same weights with the same settings, those of scoring too."""
    path = run.out / "result.json"
    result = read_json(path, "delete it, and it is scored again") if path.exists() else {}
    same = result.get("steps") == summary.step and result.get("wall_seconds") == round(summary.seconds, 1)
    return result if same and result["overrides"] == json.loads(json.dumps(dict(run.overrides))) else None


def located(config: Any, run: Run) -> dict[str, Any]:
    """Where the user's data lie, for a `Source`."""
    return {
        "data": config.data, "validation": config.validation, "test": getattr(config, "test", None),
        "skip_bad_lines": run.skip_bad_lines, "seed": config.training.seed,
    }  # fmt: skip


def _fingerprints(out: Path) -> dict[str, str]:
    """Those of the data that the last checkpoint of a run is of, so that a run keeps its splits; none where it has no
    checkpoint that can be read, which the training says."""
    for path in sorted((out / "state").glob("checkpoint-*.json"), reverse=True):
        try:
            settings = read_json(path, "")["content"]["settings"]
            return {str(name): str(digits) for name, digits in settings["fingerprints"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def log_splits(data: Data[D], splits: SplitData[D]) -> None:
    """Which file is which split, which data were held out, and which were skipped."""
    for line in data.told(splits):
        logger.info(line)
    # by reason, which names the file: what was held out knows what was left out of all of it
    skips = {reason: count for split in splits.known.values() for reason, count in split.skips.items()}
    for reason, count in skips.items():
        logger.info(f"skipped {count:,} {data.unit} of {reason}")


def settings_of(config: Any, beside: tuple[str, ...]) -> dict[str, Any]:
    """Those that would make this another run: where the data lie and how the result is used would not."""
    apart = {"training", "threads", "scored", "data", "validation", "test", *beside}
    return {name: value for name, value in asdict(config).items() if name not in apart}


@contextmanager
def log_warnings() -> Iterator[None]:
    """What a library warns of, as lines for the user."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        logger.warning(f"{warning.message}")
