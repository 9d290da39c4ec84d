"""`manyheads convert`."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import Verbs


def add(verbs: Verbs) -> None:
    verbs.add("convert", _convert, "make a safe copy of a directory that has only pickled .bin weights",
              ("DIR", "the directory"), ("OUT", "a new directory"))  # fmt: skip


def _convert(options: argparse.Namespace) -> None:
    from manyheads.export import convert

    convert(options.dir, options.out)
    print(f"{options.out}: safetensors", file=sys.stderr)
