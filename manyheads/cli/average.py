"""The command `manyheads average`: average the weights of several models."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import Verbs


def add(verbs: Verbs) -> None:
    verb = verbs.add("average", _average, "average the weights of several models of one kind",
                     example="manyheads average runs/mt/kept/epoch-8 runs/mt/kept/epoch-9 --out models/mt")  # fmt: skip
    verb.add_argument("models", nargs="+", metavar="MODEL", help="model directories with equal settings")
    verb.add_argument("--out", required=True, metavar="DIR", help="a new directory")


def _average(options: argparse.Namespace) -> None:
    from manyheads.export.average import average

    family = average(options.models, options.out)
    print(f"{options.out}: mean of {len(options.models)} models, model type {family}", file=sys.stderr)
