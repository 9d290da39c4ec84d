"""The command `manyheads compare`: compare two runs on the same test data."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from manyheads.cli.loading import PRECISION, PROCESSES, data_options, in_processes, model_for
from manyheads.cli.output import check_file, document, table
from manyheads.cli.parser import JSON, Option, Positional, Verbs
from manyheads.files import PICTURES

SHOWN = 90  # maximum number of characters that are printed of a test item


def add(verbs: Verbs) -> None:
    verbs.add(
        "compare", _compare, "compare two runs by paired bootstrap, and list the items that changed most",
        Positional("FIRST", "a run"), Positional("SECOND", "another run"), JSON,
        Option("--out", "FILE.png", "draw the difference with its interval", Path),
        *data_options("the first run"), PRECISION, PROCESSES,
        example="manyheads compare runs/first runs/second",
    )  # fmt: skip


@in_processes
def _compare(options: argparse.Namespace) -> None:
    from manyheads.tasks.comparison import compare

    if options.out is not None:
        check_file(options.out, PICTURES, f"expected a name in {', '.join(PICTURES)}")
    from manyheads.tasks.evaluation import trust

    first, second = (model_for("evaluate", run, options.precision) for run in (options.first, options.second))
    for run in (first, second) if options.trust else ():
        trust(run.path)
    comparison = compare(first, second, options.data, skip_bad_lines=options.skip_bad_lines)
    if options.out is not None:
        comparison.draw(options.out)
        print(options.out, file=sys.stderr)
    if options.json:
        return document(comparison)
    first, second = comparison["first"]["metrics"], comparison["second"]["metrics"]
    print(f"1: {options.first}\n2: {options.second}\n{comparison['items']:,} items\n")
    table([("metric", "1", "2", "2 - 1")] + [
        (n, *(f"{x:.4f}" for x in (m["value"], second[n]["value"], second[n]["value"] - m["value"])))
        for n, m in first.items()
    ])  # fmt: skip
    print()
    for name, test in comparison["bootstrap"].items():
        if (p := test["p_value"]) is None:
            print(f"{name}: too few items for a bootstrap")
        else:
            verdict = "they differ" if p < 0.05 else "no significant difference"
            interval = (
                f"{test['difference']:+.4f} ({test['low']:+.4f} to {test['high']:+.4f}), " if "low" in test else ""
            )
            print(f"{name}: {interval}paired bootstrap, p = {p:.3f}: {verdict}")
    better, worse = comparison["better"], comparison["worse"]
    changed = comparison["most_changed"]
    listing = "; the largest changes in both directions (--json lists more):" if changed else ""
    print(f"{better:,} items are better with 2, {worse:,} with 1{listing}")
    up, down = ([item for item in changed if (item["change"] > 0) == more] for more in (True, False))
    for item in sorted(up[:2] + down[:2], key=lambda item: -abs(item["change"])):
        print(f"\n{item['change']:+.3g} {comparison['ranked_by']}   {_brief(item['input'])}")
        for name, key in (("model 1", "first"), ("model 2", "second"), ("truth", "reference")):
            print(f"    {name:<8} {_brief(item[key])}")


def _brief(text: str) -> str:
    return textwrap.shorten(text, SHOWN, placeholder=" ...")
