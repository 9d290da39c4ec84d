"""`manyheads train`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from manyheads.cli.output import print_metrics
from manyheads.cli.parser import Verbs, number, whole
from manyheads.core.config import TRAINING_PRECISIONS
from manyheads.training.distributed import is_rank


def add(verbs: Verbs) -> None:
    verb = verbs.add("train", _train, "train a model", ("RECIPE", "see `manyheads recipes`"))
    verb.add_argument(
        "rest",
        nargs="*",
        metavar="key=value",
        help="settings, such as training.steps=100; `manyheads recipes RECIPE` lists them",
    )
    verb.add_argument("--config", metavar="F.yaml", help="settings from a file; key=value wins")
    verb.add_argument("--out", metavar="DIR", help="the run's directory (default: runs/RECIPE)")
    verb.add_argument("--init", metavar="MODEL", help="start from another model's weights")
    verb.add_argument("--resume", action="store_true", help="go on with the run in --out")
    verb.add_argument("--dry-run", action="store_true", help="show settings, size and estimates; train nothing")
    verb.add_argument("--max-minutes", type=number("a positive number", lambda value: value > 0), metavar="M",
                      help="stop after M minutes, resumable")  # fmt: skip
    verb.add_argument("--precision", choices=TRAINING_PRECISIONS, metavar="P",
                      help=f"{' or '.join(TRAINING_PRECISIONS)} (default: float32)")  # fmt: skip
    verb.add_argument(
        "--skip-bad-lines", action="store_true", help="leave out and count faulty lines or images of the data"
    )
    verb.add_argument("--processes", type=whole(1, 1024), metavar="N", default=1,
                      help="spread it over N processes of this machine")  # fmt: skip
    verb.add_argument("--compile", action="store_true", help="compile the model (needs a C++ compiler)")


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
    elif report:
        text = report if isinstance(report, str) else yaml.safe_dump(report, sort_keys=False, allow_unicode=True)
        print(text.rstrip("\n"))
