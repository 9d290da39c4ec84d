"""`manyheads evaluate` and `manyheads compare`."""

from __future__ import annotations

import argparse

from manyheads.cli.output import document, print_metrics, table
from manyheads.cli.parser import MODEL, Verbs


def add(verbs: Verbs) -> None:
    evaluate = verbs.add("evaluate", _evaluate, "score a model on test data", MODEL, as_json=True)
    evaluate.add_argument("--data", metavar="PATH", help="other test data than the run's own")

    compare = verbs.add("compare", _compare, "paired bootstrap of two runs, and the items that changed most",
                        ("FIRST", "a run"), ("SECOND", "another run"), as_json=True)  # fmt: skip
    compare.add_argument("--data", metavar="PATH", help="other test data than the first run's own")


def _evaluate(options: argparse.Namespace) -> None:
    from manyheads.tasks import load
    from manyheads.tasks.evaluation import evaluate

    metrics = evaluate(load(options.model), options.data)
    if options.json:
        return document({"model": options.model, "data": options.data, "metrics": metrics})
    print_metrics(metrics)


def _compare(options: argparse.Namespace) -> None:
    from manyheads.tasks import load
    from manyheads.tasks.evaluation import compare

    found = compare(load(options.first), load(options.second), options.data)
    if options.json:
        return document(found)
    first, second = found["first"]["metrics"], found["second"]["metrics"]
    print(f"1: {options.first}\n2: {options.second}\n{found['items']:,} items\n")
    table([("metric", "1", "2", "2 - 1")] + [
        (n, *(f"{x:.2f}" for x in (m["value"], second[n]["value"], second[n]["value"] - m["value"])))
        for n, m in first.items()
    ])  # fmt: skip
    print()
    for name, test in found["bootstrap"].items():
        verdict = "they differ" if test["p_value"] < 0.05 else "no difference beyond chance"
        print(f"{name}: paired bootstrap, p = {test['p_value']:.3f}: {verdict}")
    for item in found["most_changed"]:
        print(f"\n{item['change']:+.1f} {found['unit']}   {item['input']}")
        print(f"    1 {item['first']}\n    2 {item['second']}\n    = {item['reference']}")
