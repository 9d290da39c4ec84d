"""The command `manyheads runs`: list the runs of a folder, and draw their learning curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from manyheads.cli.output import check_file, document, table
from manyheads.cli.parser import JSON, Option, Positional, Verbs

MAX_ROWS = 40  # runs of a table that fits on a screen
SCORES = 2  # scores of each split in the table
PICTURES = (".png", ".svg", ".pdf")


def add(verbs: Verbs) -> None:
    verbs.add(
        "runs", _runs, "list the runs of a folder with their settings and scores",
        Positional("DIR", "a folder with runs (default: runs)", nargs="?"),
        Option("--out", "FILE.png", "draw the learning curves of the runs in one picture", Path), JSON,
        example="manyheads runs runs --out curves.png",
    )  # fmt: skip


def _runs(options: argparse.Namespace) -> None:
    from manyheads.runs.listing import differing_settings, draw_curves, find_runs, list_runs
    from manyheads.runs.overrides import setting_words

    folder = Path(options.dir or "runs")
    if options.out is not None:
        check_file(options.out, PICTURES, f"expected a name in {', '.join(PICTURES)}")
    if options.json:
        return document(list_runs(folder))
    runs = find_runs(folder)
    settings = differing_settings(runs)
    rows = [("run", "recipe", "settings", "validation", "test", "minutes", "state")]
    for run in runs[-MAX_ROWS:]:
        changes = " ".join(f"{key}={setting_words(value)}" for key, value in settings[run.name].items())
        minutes = "" if run.seconds is None else f"{run.seconds / 60:.1f}"
        state = run.state if run.state == "finished" else f"{run.state}, step {run.step:,}"
        rows.append((run.name, run.recipe, changes, _scores(run.validation), _scores(run.test), minutes, state))
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    table([[row[at] for at in kept] for row in rows])
    if len(runs) > MAX_ROWS:
        print(f"the last {MAX_ROWS} of {len(runs)} runs; --json lists all", file=sys.stderr)
    if options.out is not None:
        draw_curves(runs, options.out)
        print(options.out, file=sys.stderr)


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in list(scores.items())[:SCORES])
