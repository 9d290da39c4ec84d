"""The command `manyheads attend`: show attention weights as an interactive page, a picture or arrays."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.cli.lines import ONE_TEXT, refuse_files
from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file
from manyheads.cli.parser import MODEL, Verbs, whole
from manyheads.errors import UserError
from manyheads.files import PICTURES, JsonObject

if TYPE_CHECKING:
    from manyheads.analysis.maps import AttentionMaps

SUFFIXES = (".html", ".npz", *PICTURES)
ONLY_FOR = {  # Options of `attend` that only some types of models accept.
    "target": "translators", "pair": "models that read pairs of texts", "max_tokens": "language models",
    "truncate": "models that read texts", "calculation": "models that read texts",
}  # fmt: skip


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "attend",
        _attend,
        "show attention weights as an interactive page, a picture or arrays",
        MODEL,
        example='manyheads attend runs/translation "May 3, 2024" --out attention.html',
    )
    verb.add_argument(
        "rest",
        nargs="+",
        metavar="TEXT|IMAGE",
        help="one input, or two to compare side by side on a page; for"
        " channel weights also a folder of class folders, a table of images, or several images",
    )
    verb.add_argument("--out", type=Path, metavar="FILE",
                      help="output file: page (.html), picture (.png, .svg, .pdf) or arrays (.npz); default:"
                           " attention.html, or channels.png"
                      " for channel weights")  # fmt: skip
    verb.add_argument("--target", metavar="TEXT",
                      help="target text of a translator (default: its own translation)")  # fmt: skip
    verb.add_argument("--pair", metavar="TEXT",
                      help="second text of a pair, or the context of a question")  # fmt: skip
    verb.add_argument("--max-tokens", type=whole(1, 100_000), metavar="N",
                      help="let a language model append its N most likely tokens first")  # fmt: skip
    verb.add_argument("--against", metavar="MODEL", help="a second model to compare with on the page")
    verb.add_argument("--axis", choices=("encoder", "decoder", "cross", "self"), metavar="AXIS",
                      help="encoder, decoder, cross or self (default: all; in a picture: cross)")  # fmt: skip
    verb.add_argument("--layers", type=_numbers, metavar="N,...",
                      help="layers, from 0; in a recurrent model its steps, from 1 (default: all)")  # fmt: skip
    verb.add_argument("--heads", type=_numbers, metavar="N,...", help="heads, from 0 (default: all)")
    verb.add_argument("--calculation", action="store_true",
                      help="on a page, show on click how a weight is computed, number by number; limited to one"
                           " million numbers,"
                      " so select a few layers or heads")  # fmt: skip
    verb.add_argument("--words", action="store_true", help="merge sub-word tokens into words (on a page: a switch)")
    verb.add_argument("--lines", action="store_true", help="draw lines instead of matrices, for up to 6 heads")
    verb.add_argument("--first", type=whole(1, 10**9), metavar="N",
                      help="first token shown on the page, for a long text (default: 1)")  # fmt: skip
    verb.add_argument("--truncate", action="store_true", help="shorten a text that exceeds the model's maximum length")


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,5, found {text!r}") from None


def _attend(options: argparse.Namespace) -> None:
    out: Path = options.out or Path("attention.html")
    suffix = out.suffix.lower()
    check_file(out, SUFFIXES, f"expected a file that ends in {', '.join(SUFFIXES)}")
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
    seen: list[Any] = [_record_input(predictor, text, options) for text in options.rest]
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


def _write_channel_weights(predictor: Any, options: argparse.Namespace) -> None:
    """Write the channel weights of a network that has squeeze-and-excitation blocks but no attention.

    A data set has a row for each class, and several images have a row for each image.
    """
    for name in (*ONLY_FOR, "words", "lines", "first", "heads", "axis", "against"):
        if getattr(options, name) not in (None, False):
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


def _record_input(predictor: Any, text: str, options: argparse.Namespace) -> AttentionMaps:
    """Return the attention maps of one input. Raises UserError for an option that the model does not support."""
    if predictor.reads == "texts":
        refuse_files([text], ONE_TEXT)
    choices = {"axis": options.axis, "layers": options.layers, "heads": options.heads}
    return predictor.attend(text, **special_options(predictor, predictor.attend, options), **choices)


def special_options(predictor: Any, verb: Callable[..., Any], options: argparse.Namespace) -> JsonObject:
    """Return the options that the user has set, out of those that only some types of models accept (ONLY_FOR).

    Raise UserError for an option that this model does not support.
    """
    given = {name: value for name in ONLY_FOR if (value := getattr(options, name, None)) not in (None, False)}
    for name in given:
        if name not in signature(verb).parameters:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} applies to {ONLY_FOR[name]}, but not to {predictor.path}")
    return given
