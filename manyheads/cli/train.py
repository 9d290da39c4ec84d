"""The command `manyheads train`: train a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.output import print_scores
from manyheads.cli.parser import POSITIVE, Flag, Option, Positional, Verbs, whole
from manyheads.core.config import TRAINING_PRECISIONS
from manyheads.errors import UserError
from manyheads.training.distributed import is_rank
from manyheads.training.run_directory import saved_run

if TYPE_CHECKING:
    from manyheads.runs.recipe import Recipe


# options of `manyheads train`, which `train` reads
TRAIN_OPTIONS = (
    Option("--config", "F.yaml", "read settings from a file; key=value arguments take precedence"),
    Option("--out", "DIR", "directory of the run (default: runs/RECIPE)"),
    Option("--init", "MODEL", "initialize with the weights of another model"),
    Option("--resume", "RUN", "resume a run; budgets, patience and intervals may change (default: the run in "
           "--out)", nargs="?", const=True, default=False),
    Flag("--dry-run", "print settings, size and estimated time and memory, without training"),
    Option("--max-minutes", "M", "stop after M minutes; the run can be resumed", POSITIVE),
    Option("--precision", "P", f"{' or '.join(TRAINING_PRECISIONS)} (default: float32)",
           choices=TRAINING_PRECISIONS),
    Flag("--skip-bad-lines", "skip malformed lines or images of the data and count them", also="--skip-bad-images"),
    Option("--processes", "N", "number of processes on this machine (default: 1)", whole(1, 1024)),
    Flag("--compile", "compile the model (requires a C++ compiler)"),
)  # fmt: skip


def add(verbs: Verbs) -> None:
    verbs.add(
        "train", _train, "train a model on small built-in data or on yours",
        Positional("RECIPE", "name of a recipe; `manyheads recipes` lists them", "recipe", nargs="?"),
        Positional("key=value", "settings such as steps=100; `manyheads recipes RECIPE` lists them", "rest", nargs="*"),
        *TRAIN_OPTIONS, example="manyheads train translation training.steps=500 --out runs/dates",
        usage="manyheads train RECIPE [key=value ...] [options]\n       manyheads train --resume RUN [key=value ...]",
    )  # fmt: skip


def _train(options: argparse.Namespace) -> None:
    from manyheads.tasks.registry import RECIPES

    train(options, RECIPES)


def train(options: argparse.Namespace, recipes: Mapping[str, Recipe], module: str = "manyheads") -> None:
    """Train a recipe of the table `recipes` with parsed options, and print the report.

    module  module that `python -m` runs to train a recipe of the table in several processes
    """
    recipe, settings, resume = _words(options)
    processes = options.processes or (saved_run(Path(resume)).get("processes", 1) if isinstance(resume, str) else 1)
    if processes > 1 and not options.dry_run and not is_rank():
        from manyheads.training.distributed import launch

        raise SystemExit(launch(processes, options.given, module))
    import yaml

    from manyheads.core.config import plain
    from manyheads.runs.overrides import from_arguments
    from manyheads.runs.result import RunResult
    from manyheads.tasks.train import train as train_recipe

    report = train_recipe(
        recipe, from_arguments(settings), config=options.config, out=options.out, init=options.init, resume=resume,
        dry_run=options.dry_run, max_minutes=options.max_minutes, precision=options.precision,
        skip_bad_lines=options.skip_bad_lines, compile=options.compile, processes=processes, recipes=recipes,
    )  # fmt: skip
    if isinstance(report, Mapping) and "metrics" in report:
        print_scores(RunResult(report).scores)
        if isinstance(report, RunResult) and report.next_command:
            print(f"\ntry: {report.next_command}", file=sys.stderr)
    elif report:
        text = report if isinstance(report, str) else yaml.safe_dump(plain(report), sort_keys=False, allow_unicode=True)
        print(text.rstrip("\n"))


def _words(options: argparse.Namespace) -> tuple[str | None, list[str], str | bool]:
    """Return the recipe, the settings, and the run to resume, in whichever order the user wrote them.

    `--resume` may be followed by a setting, or by the recipe of the run in --out.
    """
    resume: str | bool = options.resume
    words = [word for word in (options.recipe, *options.rest) if word is not None]
    if isinstance(resume, str) and ("=" in resume or (options.out is not None and all("=" in word for word in words))):
        words, resume = [resume, *words], True
    names = [word for word in words if "=" not in word]
    if isinstance(resume, str) and options.out is not None:
        raise UserError(f"--resume {resume} and --out {options.out}: expected one of them")
    if len(names) > 1:
        raise UserError(f"{names[1]!r} is not a setting; expected key=value, such as training.steps=100")
    return next(iter(names), None), [word for word in words if "=" in word], resume
