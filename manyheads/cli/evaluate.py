"""The command `manyheads evaluate`: score a model on test data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.loading import PRECISION, PROCESSES, data_options, ensemble, in_processes, model_for
from manyheads.cli.output import check_file, check_new, document, print_metrics, table
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Verbs, whole
from manyheads.cli.tables import columns_option
from manyheads.errors import UserError
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.tasks.label_evaluation import LabelEvaluation

PICTURES = (".png", ".svg")
ROLES = ("text", "label", "pair", "negative", "score", "image", "folder", "suffix")
CELLS = ("true negatives", "false positives", "false negatives", "true positives")


def add(verbs: Verbs) -> None:
    verbs.add(
        "evaluate", _evaluate, "score a model on test data", MODEL, JSON, *data_options("the run"),
        Flag("--by-label", "also print the scores of each label or entity type"),
        Option("--confusion", "FILE.png|-", "draw the confusion matrix; -: print it as a table"),
        Option("--errors", "FILE.csv|.png", "write the wrong predictions as a table, or the wrong images as a sheet",
               Path),
        Flag("--overwrite", "replace an existing file of --errors"),
        Flag("--truncate", "shorten texts that exceed the model's maximum length"),
        Option("--shots", "K", "let a language model complete pairs (columns input, output) after K examples",
               whole(0, 10_000)),
        columns_option("columns of --data", *ROLES),
        ensemble(), PRECISION, PROCESSES,
        example="manyheads evaluate runs/translation --data test.tsv",
    )  # fmt: skip


@in_processes
def _evaluate(options: argparse.Namespace) -> None:
    model = model_for("evaluate", options.model, options.precision, options.ensemble)
    more: JsonObject = {"truncate": True} if options.truncate else {}
    if options.columns is not None:
        from manyheads.data.images.files import Columns as ImageColumns
        from manyheads.data.readers.labeled import Columns
        from manyheads.data.readers.text_pairs import PairColumns

        kind = ImageColumns if model.reads == "images" else Columns if "classify" in model.verbs else PairColumns
        if unknown := options.columns.keys() - vars(kind()).keys():
            expected = ", ".join(vars(kind()))
            raise UserError(f"--columns {', '.join(sorted(unknown))}: expected some of {expected} for this model")
        more["columns"] = kind(**options.columns)
    if wrong := [n for n in more if "rerank" not in model.verbs and (n, model.reads) != ("columns", "images")]:
        raise UserError(f"{options.model}: --{wrong[0]} applies to classifiers and encoders of texts")
    if options.shots is not None:
        if "generate" not in model.verbs or model.reads != "texts":
            raise UserError(f"{options.model}: --shots applies to language models")
        more["shots"] = options.shots
    reports = model.reports
    for report in ("by_label", "confusion", "errors"):
        if vars(options)[report] and report not in reports:
            supported = ", ".join(f"--{name}" for name in reports).replace("_", "-") or "no such option"
            raise UserError(f"{options.model}: found --{report.replace('_', '-')}, but the model supports {supported}")
    if options.confusion not in (None, "-"):
        check_file(Path(options.confusion), PICTURES, f"expected a name in {', '.join(PICTURES)}, or -", "--confusion")
    if options.errors:
        from manyheads.data.table_writer import WRITTEN

        sheet = (".png",) if model.reads == "images" else ()
        expected = f"expected a name in {', '.join(WRITTEN)}, or in .png for a model that reads images"
        check_file(options.errors, (*WRITTEN, *sheet), expected, "--errors", [options.data or ""])
        check_new(options.errors, "--errors", overwrite=options.overwrite)
    if options.trust:
        from manyheads.tasks.evaluation import trust

        trust(model.path)
    outcome = model.outcome(options.data, skip_bad_lines=options.skip_bad_lines, **more)
    _print(options, outcome)
    if options.errors:
        outcome.save_errors(options.errors)


def _print(options: argparse.Namespace, outcome: LabelEvaluation) -> None:
    """Print the metrics and the reports of an evaluation."""
    labels = {"labels": outcome.by_label()} if options.by_label else {}
    confusion = outcome.confusion() if options.confusion else None
    if confusion and options.confusion != "-":
        from manyheads.analysis.figures.confusion import draw_confusion

        outcome.check_unread(Path(options.confusion))
        draw_confusion(options.confusion, *confusion)
    if options.json:
        ensemble = {"ensemble": options.ensemble} if options.ensemble else {}
        matrix = {"confusion": {"labels": confusion[0], "counts": confusion[1].tolist()}} if confusion else {}
        return document(
            {"model": options.model, **ensemble, "data": options.data, "metrics": outcome.metrics, **labels, **matrix}
        )
    print_metrics(outcome.metrics)
    if labels:
        print()
        found = labels["labels"]
        shares = [name for name in (found[0] if found else ()) if name not in ("label", "items")]
        rows = [[row["label"], row["items"], *(f"{row[n]:.4f}" for n in shares)] for row in found]
        table([("label", "items", *shares), *rows])
    if confusion and options.confusion == "-":
        names, counts = confusion
        print()
        header = ("label", *CELLS) if counts.ndim == 3 else ("true \\ predicted", *names)
        rows = counts.reshape(len(names), -1).tolist()
        table([header, *([name, *row] for name, row in zip(names, rows, strict=True))])
