"""The command `manyheads answer`: answer a question with a span of a text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.lines import one_line, read_text, refuse_files
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.output import document
from manyheads.cli.parser import JSON, MODEL, Option, Verbs, number, whole
from manyheads.cli.tables import reads_table, table_options, write_predictions
from manyheads.errors import UserError

if TYPE_CHECKING:
    from manyheads.tasks.loading import LoadedModel
    from manyheads.tasks.tables import Inputs, RowTask


def add(verbs: Verbs) -> None:
    verbs.add(
        "answer", _answer, "answer a question with a span of a text", MODEL, JSON,
        Option("--question", "Q", "the question"),
        Option("--context", "C", "the text that contains the answer, or @FILE to read it from a file"),
        Option("--nbest", "N", "print the N best answers: probability, start and end character, text (default: only "
               "the best answer's text; with --json 20)", whole(1, 1000)),
        Option("--max-answer", "N", "maximum number of tokens in an answer (default: 30)", whole(1, 1000), default=30),
        Option("--null-threshold", "T", 'print an empty line if "no answer" scores higher than the best span by more '
               "than T", number(-1e9, 1e9, expected="a finite number")),
        *table_options("question", "context"), PRECISION, PROCESSES,
        example='manyheads answer runs/question-answering --question "Who wrote it?" --context @article.txt',
    )  # fmt: skip


@in_processes
def _answer(options: argparse.Namespace) -> None:
    if reads_table(options, ("question", "context", "nbest")):
        return write_predictions(options, _rows(model_for("answer", options.model, options.precision), options))
    if missing := [name for name in ("question", "context") if vars(options)[name] is None]:
        raise UserError(f"--{missing[0]} is missing: give --question and --context, or a table with --input")
    context = options.context
    if context.startswith("@"):
        context = read_text(Path(context[1:]))
    else:
        refuse_files([context], "to read it, use --context @{}")
    answerer = model_for("answer", options.model, options.precision)
    answers = answerer.answer(
        options.question, context, options.nbest or 20, options.max_answer, options.null_threshold
    )
    if options.json:
        document({"question": options.question, "answers": [answer._asdict() for answer in answers]})
    elif options.nbest:
        for answer in answers:
            print(f"{answer.probability:.4f}", answer.start, answer.end, one_line(answer.text), sep="\t")
    else:
        print(one_line(answers[0].text))


def _rows(answerer: LoadedModel, options: argparse.Namespace) -> RowTask:
    """Return the best answers to the questions in the table of --input."""
    from manyheads.tasks.tables import RowTask, choose_column, rounded, text_reader

    given = options.columns or {}
    names = [choose_column(options.input, role, given.get(role), [role]) for role in ("question", "context")]

    def answers(rows: Sequence[Inputs]) -> list[dict[str, object] | str]:
        questions, contexts = map(list, zip(*rows, strict=True))
        found = answerer.answer(questions, contexts, 1, options.max_answer, options.null_threshold)
        return [
            {"answer": best.text, "probability": rounded(best.probability), "start": best.start, "end": best.end}
            for (best, *_) in found
        ]

    added = {"answer": str, "probability": float, "start": int, "end": int}
    return RowTask(text_reader(*names), answers, added, subject="")
