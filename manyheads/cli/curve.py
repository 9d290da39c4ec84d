"""The command `manyheads curve`: plot the accuracy of runs on digit-string tasks by the length of the string."""

from __future__ import annotations

import argparse
from pathlib import Path

from manyheads.cli.output import check_file
from manyheads.cli.parser import Verbs
from manyheads.files import PICTURES


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "curve",
        _curve,
        "plot accuracy by string length for runs of the digit tasks",
        example="manyheads curve runs/universal/copy --out lengths.png",
    )
    verb.add_argument("runs", nargs="+", metavar="RUN", help="a run of a recipe universal/..., or its result.json")
    verb.add_argument("--out", type=Path, default=Path("lengths.png"), metavar="FILE",
                      help="output picture, .png, .svg or .pdf (default: lengths.png)")  # fmt: skip


def _curve(options: argparse.Namespace) -> None:
    check_file(options.out, PICTURES, "expected a picture, a name that ends in .png, .svg or .pdf")
    from manyheads.analysis.figures.length_curve import draw, read_records

    draw(read_records(options.runs), options.out)
    print(options.out)
