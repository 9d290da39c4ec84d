"""The command `manyheads rerank`: print documents in the order of their relevance to a query."""

from __future__ import annotations

import argparse

from manyheads.cli.lines import answered, one_line, refuse_files
from manyheads.cli.loading import PRECISION, model_for
from manyheads.cli.output import document
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs, whole


def add(verbs: Verbs) -> None:
    verbs.add(
        "rerank", _rerank, "order documents by their relevance to a query", MODEL, JSON,
        Positional("QUERY", "the query"),
        Positional("DOCUMENT", "without documents, read one per line of stdin", "rest", nargs="*"),
        Option("--top", "N", "number of documents to print, the most relevant first (default: all)", whole(1, 10**6)),
        Flag("--truncate", "shorten texts that exceed the model's maximum length"),
        PRECISION,
        example="manyheads rerank runs/embedding '5 March 2024' '5. März 2024' '3. Mai 2024'",
    )  # fmt: skip


def _rerank(options: argparse.Namespace) -> None:
    refuse_files(options.rest)
    predictor = model_for("rerank", options.model, options.precision)
    documents = [text for _, text, _ in answered(options.rest, lambda texts: texts)]
    ranked = predictor.rerank(options.query, documents, top=options.top, truncate=options.truncate)
    if options.json:
        return document({"query": options.query, "documents": [found._asdict() for found in ranked]})
    for found in ranked:
        print(f"{found.score:.4f}\t{one_line(found.document)}")
