"""The command `manyheads attend`: show attention weights as an interactive page, a picture or arrays."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.lines import ONE_TEXT, refuse_files
from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file
from manyheads.cli.parser import MODEL, Flag, Option, Positional, Verbs, whole
from manyheads.errors import UserError
from manyheads.files import PICTURES, JsonObject

if TYPE_CHECKING:
    from manyheads.analysis.maps import AttentionMaps
    from manyheads.tasks.loading import LoadedModel

SUFFIXES = (".html", ".npz", *PICTURES)
ONLY_FOR = {  # Options of `attend` that only some types of models accept.
    "target": "translators", "pair": "models that read pairs of texts", "max_tokens": "language models",
    "truncate": "models that read texts", "calculation": "models that read texts",
    "tuned": "language models and translators",
}  # fmt: skip


def add(verbs: Verbs) -> None:
    verbs.add(
        "attend", _attend, "show attention weights as an interactive page, a picture or arrays", MODEL,
        Positional("TEXT|IMAGE", "one input, or two to compare side by side on a page; for channel weights also a "
                   "folder of class folders, a table of images, or several images", "rest", nargs="+"),
        Option("--out", "FILE", "output file: page (.html), picture (.png, .svg, .pdf) or arrays (.npz); default: "
               "attention.html, or channels.png for channel weights", Path),
        Option("--target", "TEXT", "target text of a translator (default: its own translation)"),
        Option("--pair", "TEXT", "second text of a pair, or the context of a question"),
        Option("--max-tokens", "N", "let a language model append its N most likely tokens first", whole(1, 100_000)),
        Option("--against", "MODEL", "a second model to compare with on the page"),
        Option("--axis", "AXIS", "encoder, decoder, cross or self (default: all; in a picture: cross)",
               choices=("encoder", "decoder", "cross", "self")),
        Option("--layers", "N,...", "layers, from 0; in a recurrent model its steps, from 1 (default: all)", _numbers),
        Option("--heads", "N,...", "heads, from 0 (default: all)", _numbers),
        Flag("--calculation", "on a page, show on click how a weight is computed, number by number; limited to one "
             "million numbers, so select a few layers or heads"),
        Flag("--words", "merge sub-word tokens into words (on a page: a switch)"),
        Flag("--lines", "draw lines instead of matrices, for up to 6 heads"),
        Option("--first", "N", "first token shown on the page, for a long text (default: 1)", whole(1, 10**9)),
        Flag("--truncate", "shorten a text that exceeds the model's maximum length"),
        example='manyheads attend runs/translation "May 3, 2024" --out attention.html',
    )  # fmt: skip


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,5, found {text!r}") from None


def _attend(options: argparse.Namespace) -> None:
    out: Path = options.out or Path("attention.html")
    suffix = out.suffix.lower()
    check_file(out, SUFFIXES, f"expected a file that ends in {', '.join(SUFFIXES)}", inputs=options.rest)
    predictor = model_for("attend", options.model)
    if predictor.reads == "images" and predictor.has_channel_weights:
        return _write_channel_weights(predictor, options)
    beside = len(options.rest) + (options.against is not None)
    if beside > 2:
        raise UserError(
            f"found {beside} inputs: a page compares two, either two inputs or one input with --against MODEL"
        )
    if beside > 1 and suffix != ".html":
        raise UserError(f"two inputs are compared on a page: expected --out FILE.html, found {out}")
    if options.first is not None and suffix != ".html":
        raise UserError(f"--first applies to pages: expected --out FILE.html, found {out}")
    if options.lines and suffix not in PICTURES:
        raise UserError(f"--lines applies to pictures: expected --out FILE.png, FILE.svg or FILE.pdf, found {out}")
    if options.calculation and suffix not in (".html", ".npz"):
        raise UserError(f"--calculation applies to pages and arrays: expected --out FILE.html or FILE.npz, found {out}")
    if options.calculation and options.words:
        raise UserError("--calculation shows tokens, --words merges them: use one of the two")
    seen = [_record_input(predictor, text, options) for text in options.rest]
    if options.against is not None:
        seen.append(_record_input(model_for("attend", options.against), options.rest[0], options))
    maps, *others = [maps.words() for maps in seen] if options.words else seen
    notes: list[str] = []
    if suffix == ".html":
        notes = maps.page(out, *others, first=(options.first or 1) - 1)
    elif suffix == ".npz":
        maps.save(out)
    else:
        notes = maps.draw(out, axis=options.axis, style="lines" if options.lines else "matrix")
    for note in notes:
        print(f"manyheads: {note}", file=sys.stderr)
    print(out)


def _write_channel_weights(predictor: LoadedModel, options: argparse.Namespace) -> None:
    """Write the channel weights of a network that weighs channels, but has no attention maps.

    A data set has a row for each class, and several images have a row for each image.
    """
    for name in (*ONLY_FOR, "words", "lines", "first", "heads", "axis", "against"):
        if vars(options).get(name) not in (None, False):
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} applies to attention maps, but {options.model} has channel weights")
    out: Path = options.out or Path("channels.png")
    if out.suffix.lower() == ".html":
        raise UserError(f"--out {out}: expected a picture or arrays (.npz), because channel weights have no page")
    from manyheads.data.images.files import PICTURES as IMAGES
    from manyheads.tasks.images.image_rows import image_rows

    if len(options.rest) == 1 and Path(options.rest[0]).suffix.lower() in IMAGES:
        weights = predictor.attend(options.rest[0], layers=options.layers)
    else:
        rows = image_rows(predictor, options.rest)
        weights = predictor.channel_weights(rows.batches, rows.names, rows.row_of, title=rows.title)
        weights = weights if options.layers is None else weights.of(options.layers)
    if out.suffix.lower() == ".npz":
        weights.save(out)
    else:
        (weights.last_of_stages() if options.layers is None else weights).draw(out)
    print(out)


def _record_input(predictor: LoadedModel, text: str, options: argparse.Namespace) -> AttentionMaps:
    """Return the attention maps of one input. Raises UserError for an option that the model does not support."""
    if predictor.reads == "texts":
        refuse_files([text], ONE_TEXT)
    choices = {"axis": options.axis, "layers": options.layers, "heads": options.heads}
    return predictor.attend(text, **special_options(predictor, predictor.attend, options), **choices)


def special_options(predictor: LoadedModel, verb: Callable[..., object], options: argparse.Namespace) -> JsonObject:
    """Return the options that the user has set, out of those that only some types of models accept (ONLY_FOR).

    Raise UserError for an option that this model does not support.
    """
    given = {name: value for name, value in vars(options).items() if name in ONLY_FOR and value not in (None, False)}
    for name in given:
        if name not in signature(verb).parameters:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} applies to {ONLY_FOR[name]}, but not to {predictor.path}")
    return given
