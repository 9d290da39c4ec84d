"""`manyheads attend`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file
from manyheads.cli.parser import MODEL, Verbs, whole
from manyheads.errors import UserError

if TYPE_CHECKING:
    from manyheads.analysis.figures.channel_weights import ChannelWeights
    from manyheads.analysis.maps import AttentionMaps

SUFFIXES = (".html", ".npz", ".png", ".svg")
ONLY_FOR = {  # options that some models take
    "target": "translators", "pair": "models that read pairs of texts", "max_tokens": "language models",
    "truncate": "models that read texts", "calculation": "models that read texts",
}  # fmt: skip


def add(verbs: Verbs) -> None:
    verb = verbs.add("attend", _attend, "see where heads look: an interactive page, a picture, or arrays", MODEL)
    verb.add_argument("rest", nargs="+", metavar="TEXT|IMAGE", help="one input; or two, side by side on a page")
    verb.add_argument("--out", type=Path, metavar="FILE",
                      help="page (.html), picture (.png, .svg) or arrays (.npz) (default: attention.html; of channel "
                      "weights, which are no page, channels.png)")  # fmt: skip
    verb.add_argument("--target", metavar="TEXT",
                      help="what a translator writes, for both of two inputs (default: its own words)")  # fmt: skip
    verb.add_argument("--pair", metavar="TEXT",
                      help="the second text of a pair, for both of two inputs; of a question, its context")  # fmt: skip
    verb.add_argument("--max-tokens", type=whole(1, 100_000), metavar="N",
                      help="a language model first adds its N likeliest tokens")  # fmt: skip
    verb.add_argument("--against", metavar="MODEL", help="another model, beside the first on a page")
    verb.add_argument("--axis", choices=("encoder", "decoder", "cross", "self"), metavar="AXIS",
                      help="encoder, decoder, cross or self (default: all; of a picture: cross)")  # fmt: skip
    verb.add_argument("--layers", type=_numbers, metavar="N,...",
                      help="counted from 0; where one layer runs in steps, those, from 1 (default: all)")  # fmt: skip
    verb.add_argument("--heads", type=_numbers, metavar="N,...", help="counted from 0 (default: all)")
    verb.add_argument("--calculation", action="store_true",
                      help="on a page, a click on two tokens shows how their weight is computed, number by number; "
                      "of a few layers or heads, as a page takes a million numbers")  # fmt: skip
    verb.add_argument("--words", action="store_true", help="merge sub-words into words (on a page: a switch)")
    verb.add_argument("--lines", action="store_true", help="a picture of lines instead of matrices, of up to 6 heads")
    verb.add_argument("--first", type=whole(1, 10**9), metavar="N",
                      help="the token that a page begins with, of a long text (default: 1)")  # fmt: skip
    verb.add_argument("--truncate", action="store_true", help="cut a text that is longer than the model takes")


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,5, got {text!r}") from None


def _attend(options: argparse.Namespace) -> None:
    out: Path = options.out or Path("attention.html")
    suffix = out.suffix.lower()
    check_file(out, SUFFIXES, f"expected a file that ends in {', '.join(SUFFIXES)}")
    beside = len(options.rest) + (options.against is not None)
    if beside > 2:
        raise UserError(f"{beside} maps: a page has two side by side: two inputs, or one and --against MODEL")
    if beside > 1 and suffix != ".html":
        raise UserError(f"two maps side by side are for a page: expected --out FILE.html, got {out}")
    if options.first is not None and suffix != ".html":
        raise UserError(f"--first is for a page: expected --out FILE.html, got {out}")
    if options.lines and suffix not in (".png", ".svg"):
        raise UserError(f"--lines is for a picture: expected --out FILE.png or FILE.svg, got {out}")
    if options.calculation and suffix not in (".html", ".npz"):
        raise UserError(f"--calculation is for a page or arrays: expected --out FILE.html or FILE.npz, got {out}")
    if options.calculation and options.words:
        raise UserError("--calculation is of tokens, and --words merges them: take one of the two")
    predictor = model_for("attend", options.model)
    seen: list[Any] = [_seen(predictor, text, options) for text in options.rest]
    if options.against is not None:
        seen.append(_seen(model_for("attend", options.against), options.rest[0], options))
    from manyheads.analysis.figures.channel_weights import ChannelWeights

    if any(isinstance(one, ChannelWeights) for one in seen):
        return _channels(seen, options)
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


def _channels(seen: list[Any], options: argparse.Namespace) -> None:
    """What is seen of a network with squeeze-and-excitation and no attention."""
    if len(seen) > 1:
        raise UserError("channel weights are drawn of one image: manyheads draw channels MODEL IMAGE IMAGE takes more")
    for name in ("words", "lines", "first", "calculation"):
        if getattr(options, name) not in (None, False):
            raise UserError(f"--{name} is for attention maps, and {options.model} has channel weights instead")
    out: Path = options.out or Path("channels.png")
    weights: ChannelWeights = seen[0]
    if out.suffix.lower() == ".html":
        raise UserError(f"--out {out}: channel weights are no page: expected a file that ends in .png, .svg or .npz")
    if out.suffix.lower() == ".npz":
        weights.save(out)
    else:
        (weights.last_of_stages() if options.layers is None else weights).draw(out)
    print(out)


def _seen(predictor: Any, text: str, options: argparse.Namespace) -> AttentionMaps | ChannelWeights:
    """The maps of one input, or channel weights; an option that its predictor does not know is an error."""
    choices = {"axis": options.axis, "layers": options.layers, "heads": options.heads}
    return predictor.attend(text, **special_options(predictor, predictor.attend, options), **choices)


def special_options(predictor: Any, verb: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """Those of ONLY_FOR that were given; one that the predictor's verb does not take is an error."""
    given = {name: value for name in ONLY_FOR if (value := getattr(options, name, None)) not in (None, False)}
    for name in given:
        if name not in signature(verb).parameters:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} is for {ONLY_FOR[name]}, and {predictor.path} is none")
    return given
