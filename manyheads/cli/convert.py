"""`manyheads convert`."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import Verbs, whole


def add(verbs: Verbs) -> None:
    verb = verbs.add("convert", _convert, "make a safe copy of pickled weights, or a model of a PyTorch tutorial's",
                     ("FROM", "a directory that has only pickled .bin weights; or the .pt or .safetensors of a "
                      "state_dict of the PyTorch tutorial's translator, Seq2SeqTransformer"),
                     ("OUT", "a new directory"))  # fmt: skip
    of_file = verb.add_argument_group("of a state_dict")
    of_file.add_argument("--heads", type=whole(1, 4096), metavar="N", help="its attention heads (default: 8)")
    of_file.add_argument("--vocabularies", type=_two, metavar="SOURCE,TARGET",
                         help="files: JSON, a list of words or a mapping to ids, or text, a word a line")  # fmt: skip
    of_file.add_argument(
        "--languages", type=_two, metavar="SOURCE,TARGET", help="whose words they are (default: de,en)"
    )


def _two(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second) or "," in second:
        raise argparse.ArgumentTypeError(f"expected two, SOURCE,TARGET, got {text!r}")
    return first, second


def _convert(options: argparse.Namespace) -> None:
    from manyheads.export import convert

    given = {name: getattr(options, name) for name in ("heads", "vocabularies", "languages")}
    convert(getattr(options, "from"), options.out, **{name: value for name, value in given.items() if value})
    print(f"{options.out}: safetensors", file=sys.stderr)
