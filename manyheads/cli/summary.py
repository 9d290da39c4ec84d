"""The command `manyheads summary`: show parameters, FLOPs and memory of a model."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from manyheads.cli.loading import named
from manyheads.cli.output import document, table
from manyheads.cli.parser import JSON, Flag, Positional, Verbs
from manyheads.errors import UserError
from manyheads.files import JsonMapping
from manyheads.models.presets import FAMILIES, PRESETS, family_of

if TYPE_CHECKING:
    from manyheads.core.config import Config
    from manyheads.core.interface import Model

MAX_PARTS = 18  # number of parts of a model that are listed without --all


def add(verbs: Verbs) -> None:
    verbs.add(
        "summary", _summary, "show parameters, FLOPs and memory of a model", JSON,
        Positional("MODEL", "a model directory, a recipe or a preset (default: list the presets)", "model", nargs="?"),
        Flag("--all", "list every part of the model, or every preset"),
        Flag("--speed", "measure how fast the blocks run on this CPU, and show the route that a loaded model takes"),
        example="manyheads summary transformer/base",
    )  # fmt: skip


def _summary(options: argparse.Namespace) -> None:
    if options.model is None and options.speed:
        raise UserError("--speed needs a MODEL: a model directory, a recipe or a preset")
    if options.model is None:
        return _print_presets(options)
    from manyheads.analysis import costs
    from manyheads.training.optimizers import state_numbers

    name = options.model
    model, config = named(name)
    if options.speed:
        return _speed(name, model, as_json=options.json)
    summary = costs.summary(model)
    if config is not None:
        summary["memory"] = costs.memory(model, state_numbers(config.training))
    if options.json:
        return document({"name": name, **summary})
    _print_summary(name, summary, None if options.all else MAX_PARTS)


def _speed(name: str, model: Model[Config], *, as_json: bool) -> None:
    """Print the time of one block by route, precision and kind of work."""
    from manyheads.inference import speeds

    rows = speeds(model)
    if as_json:
        return document({"name": name, "seconds": rows})
    if not rows:
        return print(f"{name} runs in PyTorch: it has no stack of Transformer blocks, or Numba (extra fast) is missing")
    from manyheads.inference.measuring import LENGTH, ROWS, SEQUENCES
    from manyheads.inference.routes import ROUTES

    table([
        ("stack", "precision", "work", *(f"{route}, ms" for route in ROUTES), "runs on"),
        *((row["stack"], row["precision"], row.get("work", ""),
           *(f"{1e3 * row[route]:.2f}" if route in row else "" for route in ROUTES),
           row.get("route", f"plain: {row.get('reason')}")) for row in rows),
    ])  # fmt: skip
    print(f"""
Times of one block. sequences: {SEQUENCES} texts or more of {LENGTH} tokens; steps: the next token of {ROWS} texts.
plain: PyTorch's modules (float32 for int8); onednn: packed products of oneDNN; kernels: our own.""")


def _print_presets(options: argparse.Namespace) -> None:
    papers = {name: FAMILIES[family_of(name)].paper for name in PRESETS}
    if options.json:
        return document([{"name": name, "paper": paper} for name, paper in papers.items()])
    if options.all:
        return table(papers.items())
    for family in dict.fromkeys(name.partition("/")[0] for name in papers):
        names = [name for name in papers if name.partition("/")[0] == family]
        sizes = ", ".join(name.partition("/")[2] for name in names)
        text = f"  {family:<20}{sizes}{': ' if sizes else ''}{papers[names[0]]}"
        print(textwrap.fill(text, 100, subsequent_indent=" " * 22, break_on_hyphens=False))
    print("\nmanyheads summary NAME/SIZE shows one of these presets, such as manyheads summary bert/base-cased")


def _print_summary(name: str, summary: JsonMapping, max_parts: int | None) -> None:
    """Print the summary of a model, with the `max_parts` parts that have most parameters and FLOPs."""
    parameters, flops, memory = summary["parameters"], summary["flops"], summary["memory"]
    parts = dict.fromkeys([*parameters["parts"], *flops["parts"]])

    def size(part: str) -> float:
        return parameters["parts"].get(part, 0) / parameters["total"] + flops["parts"].get(part, 0) / flops["forward"]

    shown = sorted(parts, key=size, reverse=True)[:max_parts]
    rest = [part for part in parts if part not in shown]
    print(f"{name}: {parameters['total']:,} parameters, {parameters['non_embedding']:,} without embeddings")
    if active := parameters.get("active_non_embedding"):
        print(f"active for a token: {active:,} without embeddings")
    if tied := summary["config"].get("tie"):
        print(f"tied: {tied}")
    print()

    def mflops(*parts: str) -> str:
        counted = [flops["parts"][part] / 1e6 for part in parts if part in flops["parts"]]
        return f"{sum(counted):,.1f}" if counted else ""

    table([
        ("part", "parameters", "MFLOPs", "shape"),
        *((p, parameters["parts"].get(p, ""), mflops(p), parameters["shapes"].get(p, "")) for p in parts if p in shown),
        *([(f"{len(rest)} smaller parts", sum(parameters["parts"].get(p, 0) for p in rest), mflops(*rest), "--all")]
          if rest else []),
        ("total", parameters["total"], f"{flops['forward'] / 1e6:,.1f}", ""),
    ])  # fmt: skip
    item, unit = f"item of {' -> '.join(map(str, flops['tokens']))} tokens", "token"
    if "image" in flops:
        item, unit = f"image of {' x '.join(map(str, flops['image']))}", "image"
    print(f"\nFLOPs            forward pass of one {item}; {flops['convention']}")
    print(f"  per {unit}      {flops['forward_per_token'] / 1e6:,.1f} MFLOPs forward, 3 times as many in training")
    print(f"memory           {memory['weights'] / 1e6:,.1f} MB of weights (float32)")
    held = f"{memory['training'] / 1e6:,.1f} MB"
    print(f"  training       {held} with gradients and the optimizer's state, without activations")
    if "cache_per_token" in memory:
        source = (
            f", {memory['cache_per_source_token']:,} per source token" if "cache_per_source_token" in memory else ""
        )
        print(f"  decoding       {memory['cache_per_token']:,} bytes of cache per token{source}")
