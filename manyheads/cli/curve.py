"""`manyheads curve`."""

from __future__ import annotations

import argparse
from pathlib import Path

from manyheads.cli.output import check_file
from manyheads.cli.parser import Verbs

SUFFIXES = (".png", ".svg")


def add(verbs: Verbs) -> None:
    verb = verbs.add("curve", _curve, "draw how runs on digits do on strings longer than those trained on")
    verb.add_argument("runs", nargs="+", metavar="RUN", help="a run of universal/..., or its result.json")
    verb.add_argument("--out", type=Path, default=Path("lengths.png"), metavar="FILE",
                      help="a picture: .png or .svg (default: lengths.png)")  # fmt: skip


def _curve(options: argparse.Namespace) -> None:
    check_file(options.out, SUFFIXES, "the curves are a picture: expected a name that ends in .png or .svg")
    from manyheads.analysis.figures.length_curve import draw, read_records

    draw(read_records(options.runs), options.out)
    print(options.out)
