"""The command `manyheads average`: average the weights of several models."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import Option, Positional, Verbs


def add(verbs: Verbs) -> None:
    verbs.add(
        "average", _average, "average the weights of several models of one kind",
        Positional("MODEL", "model directories with equal settings", "models", nargs="+"),
        Option("--out", "DIR", "a new directory", required=True),
        example="manyheads average runs/mt/kept/epoch-8 runs/mt/kept/epoch-9 --out models/mt",
    )  # fmt: skip


def _average(options: argparse.Namespace) -> None:
    from manyheads.export.average import average

    family = average(options.models, options.out)
    print(f"{options.out}: mean of {len(options.models)} models, model type {family}", file=sys.stderr)
