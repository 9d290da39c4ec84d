"""How the receptive field of stacked convolutions grows, and attention's does not need to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from manyheads.analysis.figures.receptive_field import draw, growth
from manyheads.recipes.run import Run
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
    found = growth(**asdict(config))
    draw(found, run.out / "receptive-field.png")
    (run.out / "table.txt").write_text(f"{found}\n", encoding="utf-8")
    return str(found)
