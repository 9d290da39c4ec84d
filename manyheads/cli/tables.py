"""Options of the commands that predict the rows of a table, and the run of such a command."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.output import check_file, check_new
from manyheads.cli.parser import Flag, Option
from manyheads.errors import UserError, nearest
from manyheads.files import same_file
from manyheads.training.distributed import distributed_context

if TYPE_CHECKING:
    from manyheads.tasks.tables import RowTask

TABLE_ONLY = ("output", "columns", "overwrite", "folder", "suffix", "scores", "skip_bad_lines")


SKIP = Flag("--skip-bad-lines", "write faulty rows, too, with a column `error`")
IMAGES = (
    Option("--folder", "DIR", "image folder, relative to the folder of --input"),
    Option("--suffix", ".jpg", "text that is added to each image name of --input"),
)


def table_options(*roles: str, skip: Flag | None = SKIP) -> tuple[Option | Flag, ...]:
    """Return the options of a command that predicts the rows of a table.

    roles  names of the model's inputs, such as text, for the option that names their columns
    skip   option that keeps faulty rows; None: the command has its own
    """
    return (
        Option("--input", "TABLE", "predict the rows of a .tsv, .csv, .jsonl, .parquet", Path),
        Option("--output", "TABLE", "write the rows of --input with predictions", Path),
        columns_option("columns of --input", *roles),
        Flag("--overwrite", "replace the file of --output"),
        *([] if skip is None else [skip]),
    )


def columns_option(about: str, *roles: str) -> Option:
    """Return the option that names the columns of a model's inputs. `about` is its description."""
    first, *others = (f"{role}=NAME" for role in roles)
    about += f"; also {', '.join(others)}" if others else ""
    example = ",".join(f"{role}=NAME" for role in roles)

    def convert(given: str) -> dict[str, str]:
        columns = dict(part.split("=", 1) for part in given.split(",") if "=" in part)
        if len(columns) != given.count(",") + 1:
            raise argparse.ArgumentTypeError(f"expected {example}, found {given!r}")
        if unknown := [role for role in columns if role not in roles]:
            raise argparse.ArgumentTypeError(f"unknown column {unknown[0]!r}: {nearest(unknown[0], roles)}")
        return columns

    return Option("--columns", first, about, convert)


def refuse_table_options(options: argparse.Namespace, names: Iterable[str] = TABLE_ONLY) -> None:
    """Raise UserError for an option that has no effect without a table."""
    for name in names:
        if vars(options).get(name):
            raise UserError(
                f"{_flag(name)} applies to a table: give a .csv, .tsv, .jsonl or .parquet file with --input"
            )


def reads_table(options: argparse.Namespace, refused: Iterable[str] = (), own: Iterable[str] = ()) -> bool:
    """Return True if the user gives a table with --input. Raise UserError if it cannot be written to --output.

    refused  names of the options that have no effect on a table, in addition to the texts and `json`
    own      names of the options that have an effect without a table, too
    """
    if options.input is None:
        refuse_table_options(options, [name for name in TABLE_ONLY if name not in own])
        return False
    from manyheads.data.table_writer import WRITTEN

    for name in ("rest", "json", *refused):
        if vars(options).get(name) not in (None, False, []):
            given = "texts or images" if name == "rest" else _flag(name)
            raise UserError(f"{given} and --input {options.input}: give only one of them")
    if options.output is None:
        raise UserError(f"--input {options.input}: give the table to write, too, with --output TABLE")
    source, out = Path(options.input), Path(options.output)
    check_file(out, WRITTEN, f"expected a name in {', '.join(WRITTEN)}", "--output")
    if out.resolve() == source.resolve() or same_file(out, source):
        raise UserError(f"--output {out} is the input: give another file")
    if out.exists() and not out.is_file():
        raise UserError(f"--output {out}: expected a file, found a directory, pipe or device")
    check_new(out, "--output", overwrite=options.overwrite)
    return True


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def columns_for(options: argparse.Namespace, *roles: str) -> dict[str, str]:
    """Return the columns that the user names. Raise UserError for inputs that the model does not have.

    roles  names of the model's inputs, such as text; the options of images apply only to `image`
    """
    columns: dict[str, str] = options.columns or {}
    wrong = [f"--columns {role}=" for role in columns if role not in roles]
    if "image" not in roles:
        wrong += [f"--{name}" for name in ("folder", "suffix") if vars(options).get(name)]
    if wrong:
        raise UserError(f"{wrong[0]}: this model reads {' and '.join(roles)} only: leave it out")
    return columns


def write_predictions(options: argparse.Namespace, task: RowTask) -> None:
    """Write the table of --output, and print the number of rows to stderr."""
    from manyheads.runs.progress import ProgressDisplay
    from manyheads.tasks.tables import predict_table

    first, start = distributed_context().first, time.monotonic()
    with ProgressDisplay(options.name) if first else nullcontext() as display:

        def report(done: int, rows: int) -> None:
            if display is not None:
                rate = done / max(time.monotonic() - start, 1e-9)
                left = f"{(rows - done) / rate:,.0f} s left"
                display.show(done / rows, left, [f"{done:,} of {rows:,} rows", f"{rate:,.0f} rows/s"])

        rows, faulty = predict_table(
            Path(options.input), Path(options.output), task, skip_bad_lines=options.skip_bad_lines, report=report
        )
    if first:
        without = f", {faulty:,} of them without a prediction (see the column error)" if faulty else ""
        print(f"manyheads: {options.output}: wrote {rows:,} rows{without}", file=sys.stderr)
