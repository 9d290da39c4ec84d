"""The command `manyheads lens`: show what the model would predict if each layer were its last (logit lens)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from manyheads.cli.attend import special_options
from manyheads.cli.lines import ONE_TEXT, refuse_files
from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file, document, table
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs
from manyheads.files import PICTURES

MAX_TOKENS = 38  # number of tokens whose predictions are printed


def add(verbs: Verbs) -> None:
    verbs.add(
        "lens", _lens, "show the prediction of each layer as if it were the last (logit lens)", MODEL,
        Positional("TEXT", "one text, which may contain [MASK]"), JSON,
        Option("--out", "FILE", "also draw a picture, .png, .svg or .pdf", Path),
        Option("--target", "TEXT", "target text of a translator (default: its own translation)"),
        Option("--pair", "TEXT", "second text of a pair"),
        Flag("--truncate", "shorten a text that exceeds the model's maximum length"),
        example='manyheads lens runs/language-modeling "Once upon a" --out lens.png',
    )  # fmt: skip


def _lens(options: argparse.Namespace) -> None:
    if options.out is not None:
        check_file(options.out, PICTURES, "expected a picture, a name that ends in .png, .svg or .pdf")
    refuse_files([options.text], ONE_TEXT)
    predictor = model_for("lens", options.model)
    lens = predictor.lens(options.text, **special_options(predictor, predictor.lens, options))
    if options.json:
        document(lens.document())
    else:
        head, *rows = lens.rows()
        table([head, *rows[-MAX_TOKENS:]])
        if len(rows) > MAX_TOKENS:
            print(f"manyheads: printed the last {MAX_TOKENS} of {len(rows)} tokens; --json lists all", file=sys.stderr)
    for note in lens.draw(options.out) if options.out is not None else ():
        print(f"manyheads: {note}", file=sys.stderr)
