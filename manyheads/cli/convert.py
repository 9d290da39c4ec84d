"""The command `manyheads convert`: convert pickled weights to safetensors."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import Option, Positional, Verbs, whole


def _two(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second) or "," in second:
        raise argparse.ArgumentTypeError(f"expected SOURCE,TARGET, found {text!r}")
    return first, second


OF_FILE = (
    Option("--heads", "N", "number of attention heads (default: 8)", whole(1, 4096)),
    Option("--vocabularies", "SOURCE,TARGET", "vocabulary files: JSON (a list of words, or a mapping from word to id), "
           "or text with one word per line", _two),
    Option("--languages", "SOURCE,TARGET", "languages of the vocabularies (default: de,en)", _two),
)  # fmt: skip


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "convert", _convert, "convert pickled weights, or a PyTorch tutorial's translator, to safetensors",
        Positional("FROM", "a directory with pickled .bin weights, or the .pt or .safetensors file of a state_dict of "
                   "the PyTorch tutorial's translator, Seq2SeqTransformer", "source"),
        Positional("OUT", "a new directory"),
        example="manyheads convert downloads/marian-en-de models/marian-en-de",
    )  # fmt: skip
    of_file = verb.add_argument_group("options for a state_dict")
    for option in OF_FILE:
        option.add_to(of_file)


def _convert(options: argparse.Namespace) -> None:
    from manyheads.export import convert

    given = {name: vars(options)[name] for name in ("heads", "vocabularies", "languages")}
    convert(options.source, options.out, **{name: value for name, value in given.items() if value})
    print(f"{options.out}: safetensors", file=sys.stderr)
