"""The command `manyheads lens`: show what the model would predict if each layer were its last (logit lens)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from manyheads.cli.attend import special_options
from manyheads.cli.lines import ONE_TEXT, read_lines, refuse_files
from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file, document, table
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs, whole
from manyheads.errors import UserError
from manyheads.files import PICTURES

MAX_TOKENS = 38  # number of tokens whose predictions are printed
TUNED = ".safetensors"


def add(verbs: Verbs) -> None:
    verbs.add(
        "lens", _lens, "show the prediction of each layer as if it were the last (logit lens)", MODEL,
        Positional("TEXT|IMAGE", "one text, which may contain [MASK], or one image for a ViT", "input", "?"), JSON,
        Option("--out", "FILE", "also write a page (.html) or a picture (.png, .svg, .pdf); with --tune: the file for "
               "the tuned lens (.safetensors)", Path),
        Option("--top", "K", "number of words for each layer and position, in pages and JSON (default: 5)",
               whole(1, 1000), default=5),
        Option("--tuned", "FILE", "use a tuned lens instead of the logit lens", Path),
        Option("--tune", "TEXTS", "instead of reading a text, train a tuned lens on the lines of a file", Path),
        Option("--target", "TEXT", "target text of a translator (default: its own translation)"),
        Option("--pair", "TEXT", "second text of a pair"),
        Flag("--truncate", "shorten a text that exceeds the model's maximum length"),
        example='manyheads lens runs/language-modeling "Once upon a" --out lens.html',
    )  # fmt: skip


def _lens(options: argparse.Namespace) -> None:
    if (options.input is None) == (options.tune is None):
        raise UserError("expected either a text (or an image), or --tune TEXTS to train a tuned lens")
    if options.tune is not None:
        return _tune(options)
    if options.out is not None:
        expected = "expected a page or a picture, a name that ends in .html, .png, .svg or .pdf"
        check_file(options.out, (".html", *PICTURES), expected, inputs=[options.input])
    predictor = model_for("lens", options.model)
    if predictor.reads == "texts":
        refuse_files([options.input], ONE_TEXT)
    lens = predictor.lens(options.input, top=options.top, **special_options(predictor, predictor.lens, options))
    if options.json:
        document(lens.document())
    else:
        head, *rows = lens.rows()
        table([head, *rows[-MAX_TOKENS:]])
        if len(rows) > MAX_TOKENS:
            print(f"manyheads: printed the last {MAX_TOKENS} of {len(rows)} tokens; --json lists all", file=sys.stderr)
    if options.out is not None and options.out.suffix.lower() == ".html":
        lens.page(options.out)
    elif options.out is not None:
        for note in lens.draw(options.out):
            print(f"manyheads: {note}", file=sys.stderr)


def _tune(options: argparse.Namespace) -> None:
    """Train a tuned lens, write it, and print its divergences next to those of the logit lens."""
    if options.out is None:
        raise UserError("--tune needs --out FILE.safetensors, the file to which the tuned lens is written")
    check_file(options.out, (TUNED,), f"expected a name that ends in {TUNED}", inputs=[str(options.tune)])
    texts = [line for line in read_lines(options.tune) if line.strip()]
    from manyheads.tasks.lens import HasLens

    predictor: object = model_for("lens", options.model)
    if not isinstance(predictor, HasLens):
        raise UserError(f"{options.model}: --tune applies to language models and translators of this package")
    tuned = predictor.tune_lens(texts)
    tuned.save(options.out)
    table(tuned.rows())
