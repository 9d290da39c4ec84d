"""The command `manyheads explain`: show which parts of an input made a model predict a label or a token."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.attend import special_options
from manyheads.cli.lines import ONE_TEXT, refuse_files
from manyheads.cli.loading import model_for
from manyheads.cli.output import REPORTS, check_file, report
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs, whole

if TYPE_CHECKING:
    from manyheads.analysis.maps import AttentionMaps


def add(verbs: Verbs) -> None:
    verbs.add(
        "explain", _explain, "show which parts of an input made the model predict a label or a token", MODEL,
        Positional("TEXT|IMAGE", "one text, which may contain [MASK], or one image", "input"), JSON,
        Option("--target", "NAME", "label or token to explain (default: the model's prediction)"),
        Option("--method", "METHOD", "integrated-gradients, input-x-gradient, relevance, rollout or grad-cam (default: "
               "integrated-gradients; for a ViT relevance, for a convolutional network grad-cam)"),
        Option("--steps", "N", "number of points of integrated-gradients (default: 50)", whole(1, 10_000)),
        Option("--out", "FILE", "also write a page (.html), a picture (.png, .svg, .pdf) or arrays (.npz)", Path),
        Option("--pair", "TEXT", "second text of a pair"),
        Flag("--truncate", "shorten a text that exceeds the model's maximum length"),
        example='manyheads explain runs/text-classification "3 Mai 2024" --out words.html',
    )  # fmt: skip


def _explain(options: argparse.Namespace) -> None:
    if options.out is not None:
        check_file(options.out, REPORTS, f"expected a file that ends in {', '.join(REPORTS)}", inputs=[options.input])
    predictor = model_for("explain", options.model)
    if predictor.reads == "texts":
        refuse_files([options.input], ONE_TEXT)
    found = predictor.explain(
        options.input, method=options.method, steps=options.steps,
        **special_options(predictor, predictor.explain, options),
    )  # fmt: skip
    if not options.json:
        print(repr(found))

    def maps() -> list[AttentionMaps]:
        given = {name: value for name in ("pair", "truncate") if (value := vars(options)[name])}
        if "attend" not in predictor.supported or (predictor.reads == "images" and predictor.has_channel_weights):
            return []
        return [predictor.attend(options.input, **given)]

    report(found, options.out, as_json=options.json, maps=maps)
