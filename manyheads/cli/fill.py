"""The command `manyheads fill`: fill in [MASK] in texts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from manyheads.cli.lines import answered, one_line, refuse_files
from manyheads.cli.loading import add_precision, add_processes, model_for
from manyheads.cli.output import document
from manyheads.cli.parser import MODEL, Verbs, whole
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.tasks.masked_words.predictor import Fill


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "fill",
        _fill,
        "fill in [MASK] in texts, from arguments or stdin",
        MODEL,
        as_json=True,
        example='manyheads fill runs/bert/pretraining "Paris is the [MASK] of France."',
    )
    verb.add_argument("rest", nargs="*", metavar="TEXT", help="without arguments, read one text per line of stdin")
    verb.add_argument("--top", type=whole(1, 1000), metavar="N",
                      help="print the N most likely words for each line: line number, probability, word, text "
                      "(default: only the text with the most likely word; with --json 5)")  # fmt: skip
    add_precision(verb)
    add_processes(verb)


def _fill(options: argparse.Namespace) -> None:
    refuse_files(options.rest)
    model = model_for("fill", options.model, options.precision)
    documents: list[JsonObject] = []

    def fills(texts: list[str]) -> list[list[Fill]]:
        return model.fill(texts, options.top or (5 if options.json else 1))

    for number, text, ranked in answered(options.rest, fills):
        if options.json:
            documents.append({"text": text, "fills": [fill._asdict() for fill in ranked]})
        elif options.top:
            for fill in ranked:
                print(number, f"{fill.probability:.4f}", fill.token, one_line(fill.text), sep="\t")
        else:
            print(one_line(ranked[0].text))
    if options.json:
        document(documents)
