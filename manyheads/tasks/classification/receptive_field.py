"""How the receptive field of stacked convolutions grows, and attention's does not need to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from manyheads.analysis.figures.receptive_field import draw, growth
from manyheads.recipes.run import Run
from manyheads.tasks.classification.recipes import ReceptiveFieldConfig
from manyheads.training.run_directory import claim


def train(config: ReceptiveFieldConfig, run: Run) -> str | dict[str, Any]:
    """Trains nothing: prints the table, and writes it and receptive-field.png."""
    if run.dry_run:
        return asdict(config)
    claim(run.out, resume=run.resume)
    found = growth(**asdict(config))
    draw(found, run.out / "receptive-field.png")
    (run.out / "table.txt").write_text(f"{found}\n", encoding="utf-8")
    return str(found)
