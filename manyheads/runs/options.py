"""Options of `manyheads train` that all recipes support."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyheads.core.config import TRAINING_PRECISIONS
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.errors import UserError
from manyheads.files import JsonMapping
from manyheads.runs.overrides import setting_words
from manyheads.training.distributed import distributed_context
from manyheads.training.run_directory import TRAIN, run_status
from manyheads.training.run_log import LogCallback, ProgressCallback


@dataclass(frozen=True)
class Run:
    """Options of a training run that all recipes support.

    Some recipes consist of several runs, such as one run for each row of an ablation table. Each of these is called a
    partial run.

    recipe       name of the recipe
    out          directory of the run
    init         model from whose weights the run starts; None for new weights
    resume       True if the run continues from a checkpoint in `out`
    given        the user's settings, by dotted key
    overrides    settings of the user that differ from the recipe, as saved in `result.json`
    precision    "float32" or "bf16". By default, float32
    reads        False for a dry run that must not read data, because they are not on this machine
    max_minutes  time in minutes after which the run stops and can be resumed. It does not affect the learning rate. A
                 partial run gets the remaining time of the whole run
    processes    number of local processes that the command requested
    progress     callback for the progress of training
    memory       the user's data in memory, by split
    callbacks    functions that receive each entry of the training log. A function that returns False stops the run
    saved        content of state/run.json, from which the run can be resumed (`resuming.py`)
    own_data     True if the user gave data to a recipe that is not made for a certain data set
    changed      keys of the settings that the user changes when a run is resumed
    whole        for a partial run, the options of the whole run, which the user resumes; otherwise None
    program      beginning of the command that runs the recipe; the recipe's name and settings follow
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
    given: JsonMapping = field(default_factory=dict)
    progress: ProgressCallback | None = None
    overrides: JsonMapping = field(default_factory=dict)
    saved: JsonMapping = field(default_factory=dict)
    own_data: bool = False
    memory: Mapping[str, object] = field(default_factory=dict)
    callbacks: Sequence[LogCallback] = ()
    changed: Collection[str] = ()
    program: str = TRAIN

    @property
    def new(self) -> bool:
        """Return True if all weights of the run are newly initialized, not loaded from a model or a checkpoint."""
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
            )  # The ranks exchange the elapsed time, so that all of them use the same remaining time.
            left = max(0.0, left - spent / 60)
        return replace(self, out=out, resume=run_status(out) != "none", max_minutes=left, whole=self, saved={})

    def compute(self, threads: int | None) -> ComputeConfig:
        """Return the compute configuration of the run: device, precision and threads.

        threads  number of CPU threads that the recipe sets; None for PyTorch's default
        """
        if self.precision not in (None, *TRAINING_PRECISIONS):
            raise UserError(
                f"precision is {self.precision!r}; expected {' or '.join(TRAINING_PRECISIONS)} for training. int8 "
                "and auto are for trained models only (translate, classify, evaluate, ...)"
            )
        return prepare(self.precision or "float32", threads, self.compile)

    def refuse(self, keys: tuple[str, ...], reason: str, *, changed_only: bool = False) -> None:
        """Raise UserError if the user set an option that has no effect in this run.

        keys          names of the options. A name that ends in a dot, such as `model.`, means all options that begin
                      with it
        reason        end of the error message
        changed_only  if True, accept a value that equals the recipe's value, because users may copy it from the output
                      of `manyheads recipes`
        """
        groups = tuple(key for key in keys if key.endswith("."))
        found = self.overrides if changed_only else self.given
        if idle := [key for key in found if key in keys or key.startswith(groups)]:
            raise UserError(f"{', '.join(idle)}: {reason}")
