"""How a recipe is run: where to, from what, for how long. What is trained is in the recipe's config."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from manyheads.analysis import costs
from manyheads.core.runtime import Route, prepare
from manyheads.data.splits import SplitData
from manyheads.tasks.evaluation import Metrics
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary, train
from manyheads.training.record import write_result
from manyheads.training.run_directory import claim, locked
from manyheads.training.task import Task

UTILISATION = 0.3  # share of the matrix products' rate that training reaches as a whole, for estimates


@dataclass(frozen=True)
class Run:
    """The options of `manyheads train` that every recipe understands.

    precision    "float32", "bf16", or None: what the recipe prefers
    max_minutes  stop after so long, resumable; never shapes a schedule
    whole        the run that this one is a part of, which is what the user resumes
    overrides    the settings that differ from the recipe's, by dotted key, as `result.json` keeps them
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
    whole: Run | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def resume_command(self) -> str:
        """The command that goes on with this run."""
        if self.whole is not None:
            return self.whole.resume_command
        settings = (f"{key}={setting_words(value)}" for key, value in self.overrides.items())
        words = ["manyheads", "train", self.recipe, *settings]
        for option, value in (("--out", self.out), ("--init", self.init), ("--precision", self.precision)):
            words += [option, str(value)] if value is not None else []
        for option, given in (("--skip-bad-lines", self.skip_bad_lines), ("--compile", self.compile)):
            words += [option] if given else []
        return shlex.join([*words, "--resume"])


def carry_out(
    run: Run,
    task: Task,
    training: TrainingConfig,
    *,
    route: Route,
    settings: Mapping[str, Any],
    data: Mapping[str, Any],
    evaluate: Callable[[], Metrics],
    flops: Callable[[Summary], float] | None = None,
    **more: Any,
) -> dict[str, Any] | None:
    """Train, save, score and record: what every recipe does once it has its task. None where the run was stopped.

    settings  what would make this another run: its `identity`.
    data      for result.json: enough to find the test data again and to see whether they are the same.
    evaluate  called when the model is saved; its metrics join those of the last validation.
    flops     of the whole training; `more` goes into result.json.
    """
    claim(run.out, resume=run.resume)
    with locked(run.out), route.settings():  # nobody else trains, scores or records it meanwhile
        summary = train(
            task, training, run.out, route=route, resume=run.resume, max_minutes=run.max_minutes,
            settings=dict(settings), resume_command=run.resume_command,
        )  # fmt: skip
        if summary.status == "stopped":
            print(summary.reason, file=sys.stderr)
            return None
        metrics = {name: {"value": value, "signature": "validation"} for name, value in summary.metrics.items()}
        try:
            scored = evaluate()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted while scoring; the model in {run.out} is complete, this scores it: {run.resume_command}"
            ) from None
        init = {} if run.init is None else {"init": run.init}
        return write_result(
            run.out, recipe=run.recipe, overrides=run.overrides, data=data, metrics=metrics | scored,
            wall_seconds=summary.seconds, flops=None if flops is None else flops(summary),
            parameters=sum(p.numel() for p in task.model.parameters()), seed=training.seed,
            weights=summary.weights, steps=summary.step, target_tokens=summary.tokens, route=route.describe(),
            **init, **more,
        )  # fmt: skip


def identity(config: Any, run: Run, fingerprints: Mapping[str, str], use: tuple[str, ...] = ()) -> dict[str, Any]:
    """What would make this another run: where the data lie, and how the result is used (`use` among it), would not."""
    apart = {"training", "threads", "scored", "data", "validation", "test", *use}
    settings = {name: value for name, value in asdict(config).items() if name not in apart}
    return {**settings, "init": run.init, "fingerprints": fingerprints}


def refuse_width(run: Run) -> None:
    """For recipes that give the schedule the width of their model."""
    if "training.width" in run.overrides:
        raise ValueError("training.width: it is the width of the model, so leave it out")


def tell_splits(splits: SplitData[Any], what: str) -> None:
    """Which data were held out, and which were skipped, on stderr; `what` names the data."""
    if splits.held_out:
        print(f"no validation data: {splits.held_out:,} {what} of the training data are held out", file=sys.stderr)
    # by reason, which names the file: what was held out knows what was left out of all of it
    skips = {reason: count for data in splits.known.values() for reason, count in data.skips.items()}
    for reason, count in skips.items():
        print(f"skipped {count:,} {what} of {reason}", file=sys.stderr)


@contextmanager
def told_warnings() -> Iterator[None]:
    """What a library warns of, as lines for the user."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    for warning in told:
        print(f"warning: {warning.message}", file=sys.stderr)


def plan(
    run: Run, config: Any, model: nn.Module, batch: int, *, unit: str = "token", items: int | None = None
) -> dict[str, Any]:
    """What `--dry-run` prints: the whole configuration, and what the run will cost. Nothing is read or written.

    model  as it will be; it may be on the meta device
    unit   what batches count, and what costs are told for; items: how many an epoch has, where the settings say it
    """
    found = costs.summary(model)
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    training: TrainingConfig = config.training
    each = found["flops"]["training"] / (found["flops"]["tokens"][-1] if unit == "token" else 1)
    by_steps = None if training.steps is None else training.steps * training.accumulate * batch
    by_epochs = None if training.epochs is None or items is None else training.epochs * items
    total = min((amount for amount in (by_steps, by_epochs) if amount is not None), default=None)
    rate = route.products_per_second()
    seconds = each / rate / UTILISATION
    return {
        "recipe": run.recipe,
        "config": asdict(config),
        "model": found["config"],
        "parameters": found["parameters"]["total"],
        "memory_gib": {"weights, gradients and optimiser": round(found["memory"]["training"] / 2**30, 3)},
        "estimate": {
            f"flops_per_{unit}": each,
            f"{unit}s": total,
            "hours": None if total is None else round(seconds * total / 3600, 2),
            f"minutes_per_million_{unit}s": round(seconds * 1e6 / 60, 1),
            "assuming": f"{UTILISATION:.0%} of the {rate / 1e9:,.0f} GFLOP/s that products reach on this machine",
        },
        "device": route.device,
    }


def setting_words(value: Any) -> str:
    """A setting's value as it is given behind `key=`; what has no two items would not look like a list."""
    if isinstance(value, (list, tuple)):
        items = ",".join(setting_words(item) for item in value)
        return items if len(value) > 1 else f"[{items}]"
    return value if isinstance(value, str) else json.dumps(value)
