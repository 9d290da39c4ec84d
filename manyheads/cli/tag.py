"""The command `manyheads tag`: tag the words of texts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from manyheads.cli.lines import answered, one_line, refuse_files
from manyheads.cli.loading import add_precision, add_processes, model_for
from manyheads.cli.output import document
from manyheads.cli.parser import MODEL, Verbs
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.tasks.tagging.predictor import TaggedText


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "tag",
        _tag,
        "tag the words of texts, from arguments or stdin",
        MODEL,
        as_json=True,
        example='manyheads tag runs/tagging "Ada Lovelace lived in London."',
    )
    verb.add_argument(
        "rest",
        nargs="*",
        metavar="TEXT",
        help="without arguments, read one text per line of stdin and print word/TAG pairs",
    )
    verb.add_argument(
        "--words", action="store_true", help='texts are split into words by blanks already: "U.S." is one word'
    )
    add_precision(verb)
    add_processes(verb)


def _tag(options: argparse.Namespace) -> None:
    refuse_files(options.rest)
    tagger = model_for("tag", options.model, options.precision)
    documents: list[JsonObject] = []
    tagged: TaggedText

    def answers(texts: list[str]) -> list[TaggedText]:
        return tagger.tag([text.split() for text in texts] if options.words else texts)

    for _, _, tagged in answered(options.rest, answers):
        if options.json:
            entities = [entity._asdict() for entity in tagged.entities]
            words = [word._asdict() for word in tagged.words]
            documents.append({"text": tagged.text, "words": words, "entities": entities})
        else:
            print(one_line(str(tagged)))
    if options.json:
        document(documents)
