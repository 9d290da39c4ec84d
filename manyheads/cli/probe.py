"""The command `manyheads probe`: find attention heads by their function, or by the dependencies that they follow."""

from __future__ import annotations

import argparse
import sys
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.output import check_file, document, report, table
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Verbs, whole
from manyheads.errors import UserError
from manyheads.files import PICTURES

if TYPE_CHECKING:
    from manyheads.analysis.heads.selections import Selections
    from manyheads.tasks.heads.probing import Probe

MINIMUM = 50  # A dependency relation is listed only if it has at least this number of words.
MAX_RELATIONS = 14  # number of relations that are listed without --all


def add(verbs: Verbs) -> None:
    verbs.add(
        "probe", _probe, "find induction heads, or with a treebank the heads that follow dependencies", MODEL, JSON,
        Option("--treebank", "FILE", "sentences with dependency trees, in CoNLL-U; without it, find induction, "
               "previous-token and duplicate-token heads on repeated random tokens"),
        Option("--train", "FILE", "a second treebank, to train parsers on attention weights alone"),
        Option("--out", "FILE", "heat map of the heads, .png, .svg or .pdf; without --treebank also arrays (.npz)",
               Path),
        Flag("--all", "list every relation"),
        Option("--minimum", "N", f"omit relations with fewer words (default: {MINIMUM})",
               whole(1, 10**9), default=MINIMUM),
        Flag("--skip-bad-lines", "skip malformed sentences and count them"),
        example="manyheads probe hub:google-bert/bert-base-uncased --treebank dev.conllu",
    )  # fmt: skip


def _probe(options: argparse.Namespace) -> None:
    if options.out is not None:
        named = "expected a picture, a name that ends in .png, .svg or .pdf"
        if options.treebank is None:
            check_file(options.out, (*PICTURES, ".npz"), f"{named}, or arrays (.npz)")
        else:
            check_file(options.out, PICTURES, named)
    if options.treebank is None:
        return _detect(options)
    from manyheads.analysis.heads.dependency import draw_heads
    from manyheads.data.readers.treebank import read_treebank

    # Read the data before the model, because the model takes longer to load and the data may be faulty.
    treebank, train = (
        None if file is None else read_treebank(file, skip_bad_lines=options.skip_bad_lines)
        for file in (options.treebank, options.train)
    )
    from manyheads.tasks.heads.probing import probe
    from manyheads.tasks.loading import load

    assert treebank is not None
    results = probe(load(options.model), treebank, train=train)
    _report_omissions(results, options.minimum)
    if options.json:
        document(results.document(options.minimum))
    else:
        _print(results, options.minimum, options.all)
    if options.out is not None:  # The figure is drawn last, so that the results are printed even if drawing fails.
        draw_heads(results.dependencies, options.out, options.minimum)


def _detect(options: argparse.Namespace) -> None:
    """Print the best heads of each detector."""
    if options.train is not None or options.all or options.skip_bad_lines:
        raise UserError("--train, --all and --skip-bad-lines apply to a treebank: add --treebank FILE")
    from manyheads.tasks.heads.detection import detect_heads
    from manyheads.tasks.loading import load

    report(detect_heads(load(options.model)), options.out, as_json=options.json)


def _print(results: Probe, minimum: int, everything: bool) -> None:
    _relations(results, minimum, None if everything else MAX_RELATIONS)
    if results.coreference is not None:
        print("\nantecedents: the head picks an earlier mention of the same entity\n")
        _antecedents(results.coreference)
    if results.parsers:
        print("\nparsers: fraction of the words with the correct head (UAS)\n")
        rows = [(name, f"{s.value:.3f}", f"{s.low:.3f}-{s.high:.3f}") for name, s in results.parsers.items()]
        table([("sees", "UAS", "95%"), *rows])


def _report_omissions(results: Probe, minimum: int) -> None:
    """Print on stderr which sentences were left out."""
    counts = results.counts
    rare = sum(count < minimum for count in results.dependencies.counts().values())
    for number, what in (
        (counts["skipped"], "malformed sentences skipped"),
        (counts["too_long"], "sentences left out: longer than the model's maximum length"),
        (counts["without_tokens"], "words left out: the tokenizer gives them no token"),
        (counts.get("train_skipped", 0), "malformed sentences of --train skipped"),
        (counts.get("train_too_long", 0), "sentences of --train left out: longer than the model's maximum length"),
        (
            counts.get("train_unread", 0),
            "sentences of --train left out: the parsers are trained on the first sentences only",
        ),
        (counts["empty"], "empty nodes ignored: they have no position in the text"),
        (rare, f"relations with fewer than {minimum} words, included only in 'all' (--minimum)"),
    ):
        if number:
            print(f"{number:,} {what}", file=sys.stderr)


def _relations(results: Probe, minimum: int, limit: int | None) -> None:
    layers, heads = results.dependencies.right.shape[2:]
    print(f"{results.model}: {layers} layers of {heads} heads, counted from 0, on {results.treebank}\n")
    rows = [
        (row.group, row.items, f"{row.layer}-{row.head}", row.direction, f"{row.accuracy:.3f}",
         f"{row.low:.3f}-{row.high:.3f}", _format_fraction(row.held_out), f"{row.base:.3f}", f"({row.baseline})")
        for row in results.dependencies.table(minimum)
    ]  # fmt: skip
    table([("relation", "words", "head", "looks", "accuracy", "95%", "held out", "offset", ""), *rows[:limit]])
    if limit is not None:
        print(f"--all lists {max(0, len(rows) - limit)} more relations")
    print("\nheld out: the head was selected on every second sentence and scored on the others")


def _antecedents(mentions: Selections) -> None:
    rows = [
        (row.group, row.items, f"{row.layer}-{row.head}", row.direction, f"{row.accuracy:.3f}",
         f"{row.low:.3f}-{row.high:.3f}", _format_fraction(row.held_out),
         *(f"{base:.3f}" for base in row.baselines.values()))
        for row in mentions.table()
    ]  # fmt: skip
    table([("mention", "count", "head", "looks", "accuracy", "95%", "held out", *mentions.baselines), *rows])


def _format_fraction(value: float) -> str:
    return "" if isnan(value) else f"{value:.3f}"
