"""The command `manyheads tag`: tag the words of texts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from manyheads.cli.lines import one_line, print_answers, refuse_files
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.parser import JSON, MODEL, Flag, Positional, Verbs
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.tasks.tagging.predictor import TaggedText


def add(verbs: Verbs) -> None:
    verbs.add(
        "tag", _tag, "tag the words of texts, from arguments or stdin", MODEL, JSON,
        Positional("TEXT", "without arguments, read one text per line of stdin and print word/TAG pairs",
                   "rest", nargs="*"),
        Flag("--words", 'texts are split into words by blanks already: "U.S." is one word'),
        PRECISION, PROCESSES,
        example='manyheads tag runs/tagging "Ada Lovelace lived in London."',
    )  # fmt: skip


@in_processes
def _tag(options: argparse.Namespace) -> None:
    refuse_files(options.rest)
    tagger = model_for("tag", options.model, options.precision)

    def tags(texts: list[str]) -> Sequence[TaggedText]:
        return tagger.tag([text.split() for text in texts] if options.words else texts)

    def as_json(text: str, tagged: TaggedText) -> JsonObject:
        words, entities = ([row._asdict() for row in rows] for rows in (tagged.words, tagged.entities))
        return {"text": tagged.text, "words": words, "entities": entities}

    print_answers(options, tags, as_json, lambda _, tagged: [one_line(str(tagged))])
