"""`manyheads export` and `manyheads convert`."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import MODEL, Verbs


def add(verbs: Verbs) -> None:
    export = verbs.add("export", _export, "write a model for other tools", MODEL, ("DIR", "a new directory"))
    export.add_argument("--format", required=True, choices=("hf", "ctranslate2"), metavar="FORMAT",
                        help="hf or ctranslate2")  # fmt: skip

    verbs.add("convert", _convert, "make a safe copy of a directory that has only pickled .bin weights",
              ("DIR", "the directory"), ("OUT", "a new directory"))  # fmt: skip


def _export(options: argparse.Namespace) -> None:
    from manyheads.export import export

    family = export(options.model, options.dir, options.format)
    print(f"{options.dir}: {options.format}, model type {family}", file=sys.stderr)


def _convert(options: argparse.Namespace) -> None:
    from manyheads.export import convert

    convert(options.dir, options.out)
    print(f"{options.out}: safetensors", file=sys.stderr)
