"""The command `manyheads fill`: fill in [MASK] in texts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from manyheads.cli.lines import one_line, print_answers, refuse_files
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.parser import JSON, MODEL, TEXTS, Option, Verbs, whole
from manyheads.cli.tables import reads_table, table_options, write_predictions
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.tasks.loading import LoadedModel
    from manyheads.tasks.masked_words.predictor import Fill
    from manyheads.tasks.tables import Inputs, RowTask


def add(verbs: Verbs) -> None:
    verbs.add(
        "fill", _fill, "fill in [MASK] in texts, from arguments or stdin", MODEL, JSON,
        TEXTS,
        Option("--top", "N", "print the N most likely words for each line: line number, probability, word, text "
               "(default: only the text with the most likely word; with --json 5)", whole(1, 1000)),
        *table_options("text"), PRECISION, PROCESSES,
        example='manyheads fill runs/bert/pretraining "Paris is the [MASK] of France."',
    )  # fmt: skip


@in_processes
def _fill(options: argparse.Namespace) -> None:
    tabular = reads_table(options, ["top"])
    refuse_files(options.rest)
    model = model_for("fill", options.model, options.precision)
    if tabular:
        return write_predictions(options, _rows(model, options))

    def fills(texts: list[str]) -> Sequence[list[Fill]]:
        return model.fill(texts, options.top or (5 if options.json else 1))

    def as_lines(index: int, ranked: list[Fill]) -> list[str]:
        if not options.top:
            return [one_line(ranked[0].text)]
        return [f"{index}\t{fill.probability:.4f}\t{fill.token}\t{one_line(fill.text)}" for fill in ranked]

    def as_json(text: str, ranked: list[Fill]) -> JsonObject:
        return {"text": text, "fills": [fill._asdict() for fill in ranked]}

    print_answers(options, fills, as_json, as_lines)


def _rows(model: LoadedModel, options: argparse.Namespace) -> RowTask:
    """Return the most likely word for each mask of the texts in the table of --input."""
    from manyheads.data.readers.labeled import TEXTS
    from manyheads.tasks.tables import RowTask, choose_column, rounded, text_reader

    name = choose_column(options.input, "text", (options.columns or {}).get("text"), TEXTS)

    def fills(rows: Sequence[Inputs]) -> list[JsonObject | str]:
        best = [ranked[0] for ranked in model.fill([text for (text,) in rows], 1)]
        return [{"word": b.token, "probability": rounded(b.probability), "filled": b.text} for b in best]

    return RowTask(text_reader(name), fills, {"word": str, "probability": float, "filled": str})
