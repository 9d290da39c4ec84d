"""The command `manyheads patch`: find the activations that change a prediction between two inputs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.lines import ONE_TEXT, refuse_files
from manyheads.cli.loading import model_for
from manyheads.cli.output import REPORTS, check_file, report
from manyheads.cli.parser import JSON, MODEL, Option, Positional, Verbs

if TYPE_CHECKING:
    from manyheads.analysis.maps import AttentionMaps


def add(verbs: Verbs) -> None:
    verbs.add(
        "patch", _patch, "find the activations that change a prediction between two inputs", MODEL,
        Positional("CLEAN", "input with the prediction to explain: a text, which may contain [MASK], or an image"),
        Positional("CORRUPT", "input with another prediction and as many tokens"), JSON,
        Option("--target", "TOKEN", "token or label (default: the most likely one for CLEAN)"),
        Option("--against", "TOKEN", "token or label to compare with (default: the most likely one for CORRUPT)"),
        Option("--out", "FILE", "also write heat maps: page (.html) with the attention weights, picture "
               "(.png, .svg, .pdf) or arrays (.npz)", Path),
        example='manyheads patch runs/gpt "Ann and Bob met. Ann gave it to" "Ann and Bob met. Bob gave it to"',
    )  # fmt: skip


def _patch(options: argparse.Namespace) -> None:
    if options.out is not None:
        inputs = [options.clean, options.corrupt]
        check_file(options.out, REPORTS, f"expected a name that ends in {', '.join(REPORTS)}", inputs=inputs)
    predictor = model_for("patch", options.model)
    if predictor.reads == "texts":
        refuse_files([options.clean, options.corrupt], ONE_TEXT)
    found = predictor.patch(options.clean, options.corrupt, target=options.target, against=options.against)

    def maps() -> list[AttentionMaps]:
        return [predictor.attend(text) for text in (options.clean, options.corrupt)]

    report(found, options.out, as_json=options.json, maps=maps)
    if not options.json:
        print(f"\n{found.title.partition(';')[0]}: {found.clean:.3f} clean, {found.corrupt:.3f} corrupt")
        correlations = ", ".join(f"{name} {value:.3f}" for name, value in found.correlations.items())
        print(f"correlation with attribution patching: {correlations}")
