"""The command `manyheads evaluate`: score a model on test data."""

from __future__ import annotations

import argparse
from typing import Any

from manyheads.cli.loading import add_precision, add_processes, add_test_data, model_for
from manyheads.cli.output import document, print_metrics, table
from manyheads.cli.parser import MODEL, Verbs
from manyheads.errors import UserError

SHARES = ("precision", "recall", "f1")


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "evaluate",
        _evaluate,
        "score a model on test data",
        MODEL,
        as_json=True,
        example="manyheads evaluate runs/translation --data test.tsv",
    )
    add_test_data(verb, "the run")
    verb.add_argument("--by-label", action="store_true", help="also print precision, recall and F1 of each label")
    verb.add_argument(
        "--truncate", action="store_true", help="shorten texts that exceed the classifier's maximum length"
    )
    verb.add_argument("--columns", metavar="text=NAME,label=NAME", type=_columns,
                          help="columns of --data for labeled texts, also pair=NAME (default: as in"
                               " training)")  # fmt: skip
    add_precision(verb)
    add_processes(verb)


def _columns(given: str) -> dict[str, str]:
    columns = dict(part.split("=", 1) for part in given.split(",") if "=" in part)
    if len(columns) != given.count(",") + 1 or not columns.keys() <= {"text", "pair", "label"}:
        raise argparse.ArgumentTypeError(f"expected text=NAME,label=NAME (and pair=NAME), found {given!r}")
    return columns


def _evaluate(options: argparse.Namespace) -> None:
    model = model_for("evaluate", options.model, options.precision)
    more: dict[str, Any] = {"truncate": True} if options.truncate else {}
    if options.columns is not None:
        from manyheads.data.readers.labeled import Columns

        more["columns"] = Columns(**options.columns)
    if more and getattr(model, "reads", None) != "texts":
        raise UserError(f"{options.model}: --{next(iter(more))} applies to text classifiers")
    if options.by_label and not hasattr(model, "labels"):
        raise UserError(f"{options.model}: --by-label applies to models that predict one label per item")
    if options.trust:
        from manyheads.tasks.evaluation import trust

        trust(model.path)
    outcome = model.outcome(options.data, skip_bad_lines=options.skip_bad_lines, **more)
    labels = {"labels": outcome.by_label()} if options.by_label else {}
    if options.json:
        return document({"model": options.model, "data": options.data, "metrics": outcome.metrics, **labels})
    print_metrics(outcome.metrics)
    if labels:
        print()
        rows = [[row["label"], row["items"], *(f"{row[n]:.4f}" for n in SHARES)] for row in labels["labels"]]
        table([("label", "items", *SHARES), *rows])
