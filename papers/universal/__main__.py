"""Digit strings of Dehghani et al. 2018 (section 4.4), as described in docs/papers/universal.md.

python -m papers.universal universal/copy [key=value ...] --out RUN    train; also universal/reverse, universal/addition
python -m papers.universal evaluate RUN                                accuracy for each length of the test strings
python -m papers.universal curve RUN ... --out lengths.png             draw accuracy by length
"""

from __future__ import annotations

import argparse
from pathlib import Path

from manyheads.cli.output import check_file, print_scores
from manyheads.files import PICTURES
from papers.command import about, run, train
from papers.universal.length_curve import draw, read_records
from papers.universal.predictor import load
from papers.universal.recipes import RECIPES


def main(arguments: list[str]) -> None:
    if arguments[:1] not in (["curve"], ["evaluate"]):
        return train(RECIPES, arguments)
    parser = argparse.ArgumentParser(prog="python -m papers.universal", description=about(__doc__))
    commands = parser.add_subparsers(required=True)
    add = commands.add_parser("evaluate", help="print the accuracy for each length of the test strings")
    add.add_argument("run", metavar="RUN", help="a run of a recipe universal/...")
    add.set_defaults(command=_evaluate)
    add = commands.add_parser("curve", help="draw accuracy by length")
    add.add_argument("runs", nargs="+", metavar="RUN", help="a run of a recipe universal/..., or its result.json")
    add.add_argument("--out", type=Path, default=Path("lengths.png"), help="picture (.png, .svg or .pdf)")
    add.set_defaults(command=_curve)
    options = parser.parse_args(arguments)
    options.command(options)


def _evaluate(options: argparse.Namespace) -> None:
    print_scores({"test": load(options.run).outcome().metrics})


def _curve(options: argparse.Namespace) -> None:
    check_file(options.out, PICTURES, "expected a picture, a name that ends in .png, .svg or .pdf")
    draw(read_records(options.runs), options.out)
    print(options.out)


if __name__ == "__main__":
    raise SystemExit(run(main))
