"""How the receptive field of stacked convolutions grows, and attention's does not need to."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from manyheads.analysis.figures.receptive_field import draw, growth
from manyheads.files import write
from manyheads.recipes.run import Run
from manyheads.training.record import write_result
from manyheads.training.run_directory import claim


@dataclass(frozen=True)
class ReceptiveFieldConfig:
    """Stacks of 1 to `layers` random layers, `width` wide, on `length` positions; convolutions `kernel` wide."""

    layers: int = 6
    kernel: int = 3
    length: int = 31
    width: int = 16
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("layers", "kernel", "length", "width"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}: expected 1 or more")


def receptive_field(config: ReceptiveFieldConfig, *, run: Run) -> str | dict[str, Any]:
    """manyheads train text-classification/receptive-field [layers=6 kernel=3]

    Trains nothing: measures by gradient how many positions the middle output sees, prints the table, and draws it into
    receptive-field.png. Seconds.
    """
    if run.init is not None:
        raise ValueError(f"{run.recipe} trains nothing and starts from no model: leave --init out")
    if run.dry_run:
        return asdict(config)
    claim(run.out, resume=run.resume)
    began = time.monotonic()
    fields = growth(**asdict(config))
    draw(fields, run.out / "receptive-field.png")
    write(run.out / "table.txt", f"{fields}\n")
    _, seen, _ = fields.fields[-1]
    write_result(
        run.out, recipe=run.recipe, overrides=run.overrides, data={},
        metrics={"positions": {"value": seen, "signature": f"of {config.length}, {config.layers} convolutions"}},
        wall_seconds=time.monotonic() - began, flops=None, parameters=0, seed=config.seed,
    )  # fmt: skip
    return str(fields)
