"""Comparison of the receptive fields of stacked convolutions and of attention, for each number of layers."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from manyheads.analysis import drawing
from manyheads.analysis.figures.receptive_field import draw, growth
from manyheads.files import write
from manyheads.runs.run import Run
from manyheads.tasks.classification.recipes import ReceptiveFieldConfig
from manyheads.training.record import write_result
from manyheads.training.run_directory import locked_run_directory


def train(config: ReceptiveFieldConfig, run: Run) -> str | dict[str, Any]:
    """Write the table of receptive fields and receptive-field.png, and return the table.

    The networks have random weights and are not trained.
    """
    if run.dry_run:
        return asdict(config)
    with locked_run_directory(run.out, resume=run.resume):
        began = time.monotonic()
        fields = growth(**asdict(config))
        with drawing.optional():
            draw(fields, run.out / "receptive-field.png")
        write(run.out / "table.txt", f"{fields}\n")
        _, seen, _ = fields.fields[-1]
        write_result(
            run.out, recipe=run.recipe, overrides=run.overrides, data={},
            metrics={"positions": {"value": seen, "signature": f"of {config.length}, {config.layers} convolutions"}},
            wall_seconds=time.monotonic() - began, flops=None, parameters=0, seed=config.seed,
        )  # fmt: skip
    return str(fields)
