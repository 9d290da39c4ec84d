"""The command `manyheads convert`: convert pickled weights to safetensors."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import Verbs, whole


def add(verbs: Verbs) -> None:
    verb = verbs.add("convert", _convert, "convert pickled weights, or a PyTorch tutorial's translator, to safetensors",
                     ("FROM", "a directory with pickled .bin weights, or the .pt or .safetensors file of a "
                      "state_dict of the PyTorch tutorial's translator, Seq2SeqTransformer"),
                     ("OUT", "a new directory"),
                     example="manyheads convert downloads/marian-en-de models/marian-en-de")  # fmt: skip
    of_file = verb.add_argument_group("options for a state_dict")
    of_file.add_argument("--heads", type=whole(1, 4096), metavar="N", help="number of attention heads (default: 8)")
    of_file.add_argument("--vocabularies", type=_two, metavar="SOURCE,TARGET",
                         help="vocabulary files: JSON (a list of words, or a mapping from word to id), or text with"
                              " one word per line")  # fmt: skip
    of_file.add_argument(
        "--languages", type=_two, metavar="SOURCE,TARGET", help="languages of the vocabularies (default: de,en)"
    )


def _two(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second) or "," in second:
        raise argparse.ArgumentTypeError(f"expected SOURCE,TARGET, found {text!r}")
    return first, second


def _convert(options: argparse.Namespace) -> None:
    from manyheads.export import convert

    given = {name: getattr(options, name) for name in ("heads", "vocabularies", "languages")}
    convert(getattr(options, "from"), options.out, **{name: value for name, value in given.items() if value})
    print(f"{options.out}: safetensors", file=sys.stderr)
