"""The command `manyheads train`: train a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from manyheads.cli.output import print_metrics
from manyheads.cli.parser import Verbs, number, whole
from manyheads.core.config import TRAINING_PRECISIONS
from manyheads.training.distributed import is_rank


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "train",
        _train,
        "train a model on small built-in data or on yours",
        ("RECIPE", "name of a recipe; `manyheads recipes` lists them"),
        example="manyheads train translation training.steps=500 --out runs/dates",
    )
    verb.add_argument(
        "rest",
        nargs="*",
        metavar="key=value",
        help="settings such as training.steps=100; `manyheads recipes RECIPE` lists them",
    )
    verb.add_argument(
        "--config", metavar="F.yaml", help="read settings from a file; key=value arguments take precedence"
    )
    verb.add_argument("--out", metavar="DIR", help="directory of the run (default: runs/RECIPE)")
    verb.add_argument("--init", metavar="MODEL", help="initialize with the weights of another model")
    verb.add_argument("--resume", action="store_true", help="resume the run in --out")
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
    verb.add_argument("--processes", type=whole(1, 1024), metavar="N", default=1,
                      help="number of processes on this machine (default: 1)")  # fmt: skip
    verb.add_argument("--compile", action="store_true", help="compile the model (requires a C++ compiler)")


def _train(options: argparse.Namespace) -> None:
    if options.processes > 1 and not options.dry_run and not is_rank():
        from manyheads.training.launch import launch

        raise SystemExit(launch(options.processes, options.given))
    import yaml

    from manyheads.cli.progress import ProgressDisplay
    from manyheads.runs.overrides import from_arguments
    from manyheads.tasks.train import train

    with ProgressDisplay() as progress:
        report = train(
            options.recipe, from_arguments(options.rest), config=options.config, out=options.out, init=options.init,
            resume=options.resume, dry_run=options.dry_run, max_minutes=options.max_minutes,
            precision=options.precision, skip_bad_lines=options.skip_bad_lines, compile=options.compile,
            processes=options.processes, progress=progress,
        )  # fmt: skip
    if isinstance(report, Mapping) and "metrics" in report:
        print_metrics(report["metrics"])
        if command := getattr(report, "next_command", ""):
            print(f"\ntry: {command}", file=sys.stderr)
    elif report:
        text = report if isinstance(report, str) else yaml.safe_dump(report, sort_keys=False, allow_unicode=True)
        print(text.rstrip("\n"))
