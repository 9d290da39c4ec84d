"""Ablation of a recipe, as in a paper's table: one small training run per row, each with one changed setting."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from manyheads.files import JsonObject
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_mapping
from manyheads.runs.recipe import RunConfig
from manyheads.training.distributed import distributed_context

C = TypeVar("C", bound=RunConfig)
# name of each table row -> settings of its run that differ from the base configuration, by dotted key (model.heads)
Rows = dict[str, JsonObject]


def ablate(
    rows: Rows,
    config: C,
    run: Run,
    train: Callable[[C, Run], JsonObject | None],
    columns: Mapping[str, str],
    sizes: Mapping[str, str] = MappingProxyType({"parameters": "parameters"}),
) -> str | JsonObject | None:
    """Train a model for each row of the ablation table, and return the table of all results.

    Each row is a run that can be resumed, in its own subdirectory of `run.out`.

    train    function that trains the model of a row and returns the content of its result.json; None if it was stopped
    columns  mapping from each metric to the name of its table column. A metric that was not measured is shown as "-"
    sizes    mapping from other entries of result.json, such as "parameters", to the names of their table columns
    """
    if run.dry_run:
        return {"rows": list(rows), "each": train(config, run)}
    titles = "".join([f" {name:>13}" for name in sizes.values()] + [f" {name:>11}" for name in columns.values()])
    lines = [f"{'row':24}{titles}  seconds"]
    begun = time.monotonic()
    for name, changes in rows.items():
        row = replace(run.part(re.sub(r"\W+", "-", name), begun), overrides={**run.overrides, **changes})
        result = train(apply(config, from_mapping(changes)), row)
        if result is None:  # The run was stopped by --max-minutes; the same command resumes it.
            return None
        found, metrics = [result.get(entry) for entry in sizes], result["metrics"]
        cells = [f" {'-' if n is None else f'{n:.4g}' if isinstance(n, float) else f'{n:,}':>13}" for n in found]
        cells += [f" {metrics[m]['value']:11.3f}" if m in metrics else f" {'-':>11}" for m in columns]
        lines.append(f"{name:24}{''.join(cells)} {result['wall_seconds']:8.0f}")
    table = "\n".join(lines)
    if distributed_context().first:
        (run.out / "table.txt").write_text(table + "\n", encoding="utf-8")
    return table
