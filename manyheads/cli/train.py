"""The command `manyheads train`: train a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.output import print_scores
from manyheads.cli.parser import Parser, Verbs, number, whole
from manyheads.core.config import TRAINING_PRECISIONS
from manyheads.errors import UserError
from manyheads.training.distributed import is_rank
from manyheads.training.run_directory import saved_run

if TYPE_CHECKING:
    from manyheads.runs.recipe import Recipe


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "train",
        _train,
        "train a model on small built-in data or on yours",
        example="manyheads train translation training.steps=500 --out runs/dates",
    )
    verb.usage = "manyheads train RECIPE [key=value ...] [options]\n       manyheads train --resume RUN [key=value ...]"
    verb.add_argument("recipe", metavar="RECIPE", nargs="?", help="name of a recipe; `manyheads recipes` lists them")
    verb.add_argument(
        "rest",
        nargs="*",
        metavar="key=value",
        help="settings such as steps=100; `manyheads recipes RECIPE` lists them",
    )
    add_options(verb)


def add_options(verb: Parser) -> None:
    """Add the options of `manyheads train` to a parser. `train` reads them."""
    verb.add_argument(
        "--config", metavar="F.yaml", help="read settings from a file; key=value arguments take precedence"
    )
    verb.add_argument("--out", metavar="DIR", help="directory of the run (default: runs/RECIPE)")
    verb.add_argument("--init", metavar="MODEL", help="initialize with the weights of another model")
    verb.add_argument(
        "--resume", nargs="?", const=True, default=False, metavar="RUN",
        help="resume a run; budgets, patience and intervals may change (default: the run in --out)",
    )  # fmt: skip
    verb.add_argument(
        "--dry-run", action="store_true", help="print settings, size and estimated time and memory, without training"
    )
    verb.add_argument("--max-minutes", type=number("a positive number", lambda value: value > 0), metavar="M",
                      help="stop after M minutes; the run can be resumed")  # fmt: skip
    verb.add_argument("--precision", choices=TRAINING_PRECISIONS, metavar="P",
                      help=f"{' or '.join(TRAINING_PRECISIONS)} (default: float32)")  # fmt: skip
    verb.add_argument(
        "--skip-bad-lines",
        "--skip-bad-images",
        action="store_true",
        help="skip malformed lines or images of the data and count them",
    )
    verb.add_argument("--processes", type=whole(1, 1024), metavar="N",
                      help="number of processes on this machine (default: 1)")  # fmt: skip
    verb.add_argument("--compile", action="store_true", help="compile the model (requires a C++ compiler)")


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

    from manyheads.cli.progress import ProgressDisplay
    from manyheads.runs.overrides import from_arguments
    from manyheads.runs.result import RunResult
    from manyheads.tasks.train import train as train_recipe

    with ProgressDisplay() as progress:
        report = train_recipe(
            recipe, from_arguments(settings), config=options.config, out=options.out, init=options.init,
            resume=resume, dry_run=options.dry_run, max_minutes=options.max_minutes,
            precision=options.precision, skip_bad_lines=options.skip_bad_lines, compile=options.compile,
            processes=processes, progress=progress, recipes=recipes,
        )  # fmt: skip
    if isinstance(report, Mapping) and "metrics" in report:
        print_scores(RunResult(report).scores)
        if command := getattr(report, "next_command", ""):
            print(f"\ntry: {command}", file=sys.stderr)
    elif report:
        text = report if isinstance(report, str) else yaml.safe_dump(report, sort_keys=False, allow_unicode=True)
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
