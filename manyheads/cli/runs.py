"""The command `manyheads runs`: list the runs of a folder, and draw their learning curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import shorten

from manyheads.cli.output import check_file, document, table
from manyheads.cli.parser import JSON, Option, Positional, Verbs
from manyheads.files import PICTURES

MAX_ROWS = 40  # runs of a table that fits on a screen
SCORES = 2  # scores of each split in the table, in a terminal that is not narrow
WIDE = 140  # columns of a terminal that is not narrow


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
    narrow = sys.stdout.isatty() and get_terminal_size().columns < WIDE
    shown = 1 if narrow else SCORES
    rows: list[tuple[str, ...]] = [("run", "recipe", "settings", "validation", "test", "minutes", "state")]
    for run in runs[-MAX_ROWS:]:
        changes = " ".join(f"{key}={setting_words(value)}" for key, value in settings[run.name].items())
        minutes = "" if run.seconds is None else f"{run.seconds / 60:.1f}"
        state = run.state if run.state == "finished" else f"{run.state}, step {run.step:,}"
        rows.append(
            (run.name, run.recipe, changes, _scores(run.validation, shown), _scores(run.test, shown), minutes, state)
        )
    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    if narrow and len({run.recipe for run in runs}) == 1:
        kept.remove(1)
    rows = [tuple(row[at] for at in kept) for row in rows]
    if narrow and "settings" in rows[0]:
        rows = _fitting(rows, rows[0].index("settings"))
    table(rows)
    if len(runs) > MAX_ROWS:
        print(f"the last {MAX_ROWS} of {len(runs)} runs; --json lists all", file=sys.stderr)
    if options.out is not None:
        others = draw_curves(runs, options.out)
        print(f"{options.out}; not drawn: {', '.join(others)}" if others else options.out, file=sys.stderr)


def _fitting(rows: Sequence[Sequence[str]], at: int) -> list[tuple[str, ...]]:
    """Return the rows of a table with the column number `at` shortened, so that the table fits the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = widths[at] + min(0, get_terminal_size().columns - sum(widths) - 2 * len(widths) + 2)
    return [
        (*row[:at], shorten(row[at], max(room, len("settings")), placeholder=" ..."), *row[at + 1 :]) for row in rows
    ]


def _scores(scores: Mapping[str, float], count: int) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in list(scores.items())[:count])
