"""`manyheads evaluate`."""

from __future__ import annotations

import argparse
from typing import Any

from manyheads.cli.loading import add_precision, add_processes, model_for
from manyheads.cli.output import document, print_metrics, table
from manyheads.cli.parser import MODEL, Verbs
from manyheads.errors import UserError

SHARES = ("precision", "recall", "f1")


def add(verbs: Verbs) -> None:
    verb = verbs.add("evaluate", _evaluate, "score a model on test data", MODEL, as_json=True)
    verb.add_argument("--data", metavar="PATH", help="other test data than the run's own")
    verb.add_argument("--trust", action="store_true", help="open what the record of a run from elsewhere names")
    verb.add_argument("--by-label", action="store_true", help="also how each label fares")
    verb.add_argument("--truncate", action="store_true", help="cut texts that a classifier is too short for")
    verb.add_argument("--columns", metavar="text=NAME,label=NAME", type=_columns,
                          help="of --data, for texts with labels (and pair=NAME; default: as in training)")  # fmt: skip
    verb.add_argument("--skip-bad-lines", action="store_true", help="leave out and count what of --data is malformed")
    add_precision(verb)
    add_processes(verb)


def _columns(given: str) -> dict[str, str]:
    columns = dict(part.split("=", 1) for part in given.split(",") if "=" in part)
    if len(columns) != given.count(",") + 1 or not columns.keys() <= {"text", "pair", "label"}:
        raise argparse.ArgumentTypeError(f"expected text=NAME,label=NAME (and pair=NAME), got {given!r}")
    return columns


def _evaluate(options: argparse.Namespace) -> None:
    model = model_for("evaluate", options.model, options.precision)
    more: dict[str, Any] = {"truncate": True} if options.truncate else {}
    if options.columns is not None:
        from manyheads.data.readers.labelled import Columns

        more["columns"] = Columns(**options.columns)
    if more and getattr(model, "reads", None) != "texts":
        raise UserError(f"{options.model}: --{next(iter(more))} is for models that classify texts")
    if options.by_label and not hasattr(model, "labels"):
        raise UserError(f"{options.model}: --by-label is for models that tell one label of each item")
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
