"""`manyheads evaluate` and `manyheads compare`."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from manyheads.cli.models import model_for
from manyheads.cli.output import document, print_metrics, table
from manyheads.cli.parser import MODEL, Parser, Verbs

SHOWN = 300  # characters of an item
SHARES = ("precision", "recall", "f1")


def add(verbs: Verbs) -> None:
    evaluate = verbs.add("evaluate", _evaluate, "score a model on test data", MODEL, as_json=True)
    evaluate.add_argument("--data", metavar="PATH", help="other test data than the run's own")
    evaluate.add_argument("--by-label", action="store_true", help="also how each label fares")
    evaluate.add_argument("--truncate", action="store_true", help="cut texts that a classifier is too short for")
    evaluate.add_argument("--columns", metavar="text=NAME,label=NAME", type=_columns,
                          help="of --data, for texts with labels (and pair=NAME; default: as in training)")  # fmt: skip
    _skip(evaluate)

    compare = verbs.add("compare", _compare, "paired bootstrap of two runs, and the items that changed most",
                        ("FIRST", "a run"), ("SECOND", "another run"), as_json=True)  # fmt: skip
    compare.add_argument("--data", metavar="PATH", help="other test data than the first run's own")
    _skip(compare)


def _skip(verb: Parser) -> None:
    verb.add_argument("--skip-bad-lines", action="store_true", help="leave out and count what of --data is malformed")


def _columns(given: str) -> dict[str, str]:
    found = dict(part.split("=", 1) for part in given.split(",") if "=" in part)
    if len(found) != given.count(",") + 1 or not found.keys() <= {"text", "pair", "label"}:
        raise argparse.ArgumentTypeError(f"expected text=NAME,label=NAME (and pair=NAME), got {given!r}")
    return found


def _evaluate(options: argparse.Namespace) -> None:
    from manyheads.data.labelled import Columns
    from manyheads.tasks.classification.predictor import Classifier
    from manyheads.tasks.evaluation import LabelOutcome

    model = model_for("outcome", options.model)
    more: dict[str, Any] = {"truncate": True} if options.truncate else {}
    if options.columns is not None:
        more["columns"] = Columns(**options.columns)
    if more and not isinstance(model, Classifier):
        raise ValueError(f"{options.model}: --{next(iter(more))} is for models that classify texts")
    outcome = model.outcome(options.data, skip_bad_lines=options.skip_bad_lines, **more)
    if options.by_label and not isinstance(outcome, LabelOutcome):
        raise ValueError(f"{options.model}: --by-label is for models that tell one label of each item")
    labels = {"labels": outcome.by_label()} if options.by_label else {}
    if options.json:
        return document({"model": options.model, "data": options.data, "metrics": outcome.metrics, **labels})
    print_metrics(outcome.metrics)
    if labels:
        print()
        rows = [[row["label"], row["items"], *(f"{row[n]:.4f}" for n in SHARES)] for row in labels["labels"]]
        table([("label", "items", *SHARES), *rows])


def _compare(options: argparse.Namespace) -> None:
    from manyheads.tasks.evaluation import compare

    both = (model_for("outcome", options.first), model_for("outcome", options.second))
    found = compare(*both, options.data, skip_bad_lines=options.skip_bad_lines)
    if options.json:
        return document(found)
    first, second = found["first"]["metrics"], found["second"]["metrics"]
    print(f"1: {options.first}\n2: {options.second}\n{found['items']:,} items\n")
    table([("metric", "1", "2", "2 - 1")] + [
        (n, *(f"{x:.4f}" for x in (m["value"], second[n]["value"], second[n]["value"] - m["value"])))
        for n, m in first.items()
    ])  # fmt: skip
    print()
    for name, test in found["bootstrap"].items():
        if (p := test["p_value"]) is None:
            print(f"{name}: too few items for a bootstrap")
        else:
            verdict = "they differ" if p < 0.05 else "no difference beyond chance"
            print(f"{name}: paired bootstrap, p = {p:.3f}: {verdict}")
    print(f"{found['better']:,} items better with 2, {found['worse']:,} worse; those that changed most, both ways:")
    for item in found["most_changed"]:
        parts = (item[name] for name in ("first", "second", "reference", "input"))
        first, second, reference, given = (textwrap.shorten(part, SHOWN, placeholder=" ...") for part in parts)
        print(
            f"\n{item['change']:+.3g} {found['ranked_by']}   {given}\n    1 {first}\n    2 {second}\n    = {reference}"
        )
