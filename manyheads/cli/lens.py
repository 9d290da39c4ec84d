"""`manyheads lens`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from manyheads.cli.attend import special_options
from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file, document, table
from manyheads.cli.parser import MODEL, Verbs

SUFFIXES = (".png", ".svg")


def add(verbs: Verbs) -> None:
    verb = verbs.add("lens", _lens, "what each layer would predict if it were the last: the logit lens", MODEL,
                     ("TEXT", "one text; [MASK] may stand in it"), as_json=True)  # fmt: skip
    verb.add_argument("--out", type=Path, metavar="FILE", help="a picture of it, too: .png or .svg")
    verb.add_argument("--target", metavar="TEXT", help="what a translator writes (default: its own words)")
    verb.add_argument("--pair", metavar="TEXT", help="the second text of a pair")
    verb.add_argument("--truncate", action="store_true", help="cut a text that is longer than the model takes")


def _lens(options: argparse.Namespace) -> None:
    if options.out is not None:
        check_file(options.out, SUFFIXES, "a lens is drawn as a picture: expected a name that ends in .png or .svg")
    predictor = model_for("lens", options.model)
    lens = predictor.lens(options.text, **special_options(predictor, predictor.lens, options))
    if options.json:
        document(lens.document())
    else:
        table(lens.rows())
    for note in lens.draw(options.out) if options.out is not None else ():
        print(f"manyheads: {note}", file=sys.stderr)
