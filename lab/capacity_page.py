"""`python -m lab.capacity_page`: draw the picture of docs/papers/capacity.md from the records; its tables.

The records are those of `language-modeling/capacity`: `runs/capacity-SEED-ROW.json`, a row for each model and size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log10
from pathlib import Path
from statistics import linear_regression, mean
from typing import NamedTuple

from lab import results_keep
from lab.colors import MODEL_COLORS
from lab.complexity_page import markdown
from lab.records import half_width
from papers.capacity.recipes import SIZES, WIDTHS

ENTRY = "capacity"  # in the list of runs
FIGURE = Path("docs/images/capacity.png")
NAMES = {"lstm": "LSTM", "convolution": "convolutions", "transformer": "Transformer"}
RECORD = r"-(\d+)-([a-z]+)-([\d-]+)"  # end of a name such as "capacity-2-lstm-0-25": seed, architecture and size
MISSING = "No record exists yet."


class Point(NamedTuple):
    """Loss of one model: `parameters` are those without embeddings, `loss` is in nats per character."""

    parameters: int
    loss: float


Curve = dict[str, Point]  # by size


def curves(entry: str = ENTRY) -> dict[str, dict[int, Curve]]:
    """Return the curve of each architecture and seed of an entry of the list of runs."""
    found: dict[str, dict[int, Curve]] = {architecture: {} for architecture in WIDTHS}
    for name, record in results_keep.kept().items():
        if match := re.fullmatch(re.escape(entry) + RECORD, name):
            seed, architecture, size = match.groups()
            point = Point(record["non_embedding"], record["metrics"]["loss"]["value"])
            found[architecture].setdefault(int(seed), {})[size.replace("-", ".")] = point
    return found


def slope(points: Sequence[Point]) -> float:
    """Return the slope of the loss over the logarithm of the parameters: nats for ten times the parameters.

    >>> slope([Point(1000, 2.0), Point(10_000, 1.8), Point(100_000, 1.6)])
    -0.2
    """
    fitted = linear_regression([log10(point.parameters) for point in points], [point.loss for point in points])
    return round(fitted.slope, 12)


def slopes(largest: int = len(SIZES), entry: str = ENTRY) -> dict[str, dict[int, float]]:
    """Return the slope of each architecture and seed with records of all sizes.

    largest  number of sizes that count, from the largest
    """
    return {
        architecture: {
            seed: slope([curve[size] for size in SIZES[-largest:]])
            for seed, curve in seeds.items()
            if set(SIZES) <= curve.keys()
        }
        for architecture, seeds in curves(entry).items()
    }


def differences(largest: int = len(SIZES), entry: str = ENTRY) -> dict[str, list[float]]:
    """Return the slope of the Transformer minus the slope of each other architecture, seed by seed."""
    found = slopes(largest, entry)
    base = found.pop("transformer")
    return {
        architecture: [base[seed] - seeds[seed] for seed in sorted(base.keys() & seeds.keys())]
        for architecture, seeds in found.items()
    }


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of a mean (Student's t); None for a single value."""
    if len(values) < 2:
        return None
    half = half_width(values)
    return mean(values) - half, mean(values) + half


def judgment(values: Sequence[float]) -> str:
    """Return whether the Transformer gains more from size, given the differences of its slope and another one.

    >>> judgment([-0.1, -0.11, -0.12]), judgment([0.1, -0.1, 0.05]), judgment([0.1, 0.11, 0.12])
    ('shown', 'not decided', 'refuted')
    """
    found = interval(values)
    if found is None:
        return "not decided"
    return "shown" if found[1] < 0 else "refuted" if found[0] > 0 else "not decided"


def losses_table() -> str:
    """Return the loss of each model: a row for each size, a column for each architecture."""
    found = curves()
    if not any(found.values()):
        return MISSING
    rows = [["parameters", *NAMES.values(), "seeds"], ["--:", *["--:"] * len(NAMES), "--:"]]
    for size in SIZES:
        by_architecture = [
            [curve[size].loss for curve in seeds.values() if size in curve] for seeds in found.values()
        ]  # fmt: skip
        counts = sorted({len(losses) for losses in by_architecture})
        cells = [_with_interval(losses) for losses in by_architecture]
        rows.append([f"{size} M", *cells, " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))])
    return markdown(rows)


def slopes_table() -> str:
    """Return the slopes of each architecture, and the differences of the Transformer's slope and the others'."""
    whole, last = slopes(), slopes(2)
    if not any(whole.values()):
        return ""
    ends = f"{SIZES[-2]} M to {SIZES[-1]} M"
    rows = [
        ["loss for ten times the parameters", "all sizes", ends, "gains more from size"],
        ["---", "--:", "--:", "---"],
    ]
    for architecture, name in NAMES.items():
        rows.append([name, *(_with_interval([*found[architecture].values()]) for found in (whole, last)), ""])
    for (architecture, of_all), of_last in zip(differences().items(), differences(2).values(), strict=True):
        name = f"Transformer minus {NAMES[architecture]}"
        rows.append([name, _with_interval(of_all), _with_interval(of_last), judgment(of_all) if of_all else ""])
    return markdown(rows)


def picture() -> str:
    return f"![Loss over the number of parameters](../images/{FIGURE.name})" if any(slopes().values()) else ""


def draw(out: Path) -> Path | None:
    """Draw the loss over the number of parameters: a line for the mean of each architecture, a point for each seed."""
    from matplotlib import pyplot

    if not any(slopes().values()):
        return None
    figure, axis = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    for architecture, seeds in curves().items():
        color, kept = MODEL_COLORS[architecture], [curve for curve in seeds.values() if set(SIZES) <= curve.keys()]
        sizes = [[curve[size] for curve in kept] for size in SIZES if kept]
        means = [mean(point.loss for point in points) for points in sizes]
        axis.plot([points[0].parameters for points in sizes], means, color=color, label=NAMES[architecture])
        every = [point for points in sizes for point in points]
        axis.scatter([point.parameters for point in every], [point.loss for point in every], color=color, s=14)
    axis.set(xscale="log", xlabel="parameters without embeddings", ylabel="validation loss, nats per character")
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)
    return out


def _with_interval(values: Sequence[float]) -> str:
    """Return a mean, and half the width of its 95% interval if there are several values."""
    if not values:
        return ""
    found = interval(values)
    return f"{mean(values):.3f}" + (f" ± {(found[1] - found[0]) / 2:.3f}" if found else "")


PARTS = (losses_table, picture, slopes_table)

if __name__ == "__main__":
    print(draw(FIGURE))
