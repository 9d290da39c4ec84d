"""The command `manyheads tag`: tag the words of texts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from manyheads.cli.lines import one_line, print_answers, refuse_files
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.parser import JSON, MODEL, Flag, Positional, Verbs
from manyheads.cli.tables import reads_table, table_options, write_predictions
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.tasks.loading import LoadedModel
    from manyheads.tasks.tables import Inputs, RowTask
    from manyheads.tasks.tagging.predictor import TaggedText


def add(verbs: Verbs) -> None:
    verbs.add(
        "tag", _tag, "tag the words of texts, from arguments or stdin", MODEL, JSON,
        Positional("TEXT", "without arguments, read one text per line of stdin and print word/TAG pairs",
                   "rest", nargs="*"),
        Flag("--words", 'texts are split into words by blanks already: "U.S." is one word'),
        *table_options("text"), PRECISION, PROCESSES,
        example='manyheads tag runs/tagging "Ada Lovelace lived in London."',
    )  # fmt: skip


@in_processes
def _tag(options: argparse.Namespace) -> None:
    tabular = reads_table(options)
    refuse_files(options.rest)
    tagger = model_for("tag", options.model, options.precision)
    if tabular:
        return write_predictions(options, _rows(tagger, options))

    def tags(texts: list[str]) -> Sequence[TaggedText]:
        return tagger.tag([text.split() for text in texts] if options.words else texts)

    def as_json(text: str, tagged: TaggedText) -> JsonObject:
        words, entities = ([row._asdict() for row in rows] for rows in (tagged.words, tagged.entities))
        return {"text": tagged.text, "words": words, "entities": entities}

    print_answers(options, tags, as_json, lambda _, tagged: [one_line(str(tagged))])


def _rows(tagger: LoadedModel, options: argparse.Namespace) -> RowTask:
    """Return the tags of the texts in the table of --input. A cell may also be a list of words."""
    from manyheads.data.readers.labeled import TEXTS
    from manyheads.tasks.tables import RowTask, choose_column, text_reader
    from manyheads.tasks.tagging.predictor import FoundEntity

    name = choose_column(options.input, "text", (options.columns or {}).get("text"), (*TEXTS, "tokens", "words"))

    def tags(rows: Sequence[Inputs]) -> list[JsonObject | str]:
        texts = [text.split() if options.words and isinstance(text, str) else text for (text,) in rows]
        return [
            {"tags": [word.tag for word in tagged.words], "entities": [found._asdict() for found in tagged.entities]}
            for tagged in tagger.tag(texts)
        ]

    return RowTask(text_reader(name, lists=True), tags, {"tags": list[str], "entities": list[FoundEntity]})
