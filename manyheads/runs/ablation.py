"""Ablation of a recipe, as in a paper's table: one small training run per row, each with one changed setting."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from manyheads.runs.overrides import apply, from_mapping
from manyheads.runs.run import Run
from manyheads.training.distributed import distributed_context

C = TypeVar("C")
# For each table row, the settings that differ from the base configuration, by dotted key such as model.heads.
Rows = dict[str, dict[str, Any]]


def ablate(
    rows: Rows, config: C, run: Run, train: Callable[[C, Run], dict[str, Any] | None], columns: Mapping[str, str]
) -> str | dict[str, Any] | None:
    """Train a model for each row of the ablation table, and return the table of all results.

    Each row is a run that can be resumed, in its own subdirectory of `run.out`.

    columns  names of the table columns, by metric
    """
    if run.dry_run:
        return {"rows": list(rows), "each": train(config, run)}
    lines = [f"{'row':24} {'parameters':>12}" + "".join(f" {name:>11}" for name in columns.values()) + "  seconds"]
    begun = time.monotonic()
    for name, changes in rows.items():
        row = replace(run.part(re.sub(r"\W+", "-", name), begun), overrides={**run.overrides, **changes})
        result = train(apply(config, from_mapping(changes)), row)
        if result is None:  # The run was stopped by --max-minutes; the same command resumes it.
            return None
        scores = "".join(f" {result['metrics'][metric]['value']:11.3f}" for metric in columns)
        lines.append(f"{name:24} {result['parameters']:12,}{scores} {result['wall_seconds']:8.0f}")
    table = "\n".join(lines)
    if distributed_context().first:
        (run.out / "table.txt").write_text(table + "\n", encoding="utf-8")
    return table
