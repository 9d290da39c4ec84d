"""`python -m lab.parts_page`: draw the two pictures of docs/papers/ablations.md from the records; its tables.

The records of `translation/parts` are `runs/parts-GROUP-SEED-ROW.json`. Rows that were trained later have records
`runs/parts-GROUP-more-SEED-ROW.json`. `python -m papers.ablations gradients --json` writes `parts/gradients.json`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from math import isfinite, log
from pathlib import Path
from statistics import mean
from typing import Any

from lab import results_keep
from lab.complexity_page import markdown
from lab.records import RESULTS, half_width
from papers.ablations import gradients
from papers.ablations.recipes import PARTS as SETTINGS
from papers.ablations.recipes import ROWS

CURVES, GRADIENTS = Path("docs/images/parts-curves.png"), Path("docs/images/parts-gradients.png")
METRIC = "bleu_moses_lc"
DIVERGED = 7  # losses from here on are not shown in the pictures
GROUPS = {"3": "3 + 3 layers", "12": "12 + 12 layers", "3-long": "3 + 3 layers, 2,000 steps"}  # their titles
NAMES = {
    "full": "nothing (pre-norm)", "no-residual": "residual connections", "no-scale": "scale of the scores",
    "no-feed-forward": "feed-forward networks", "no-positions": "positions", "one-head": "all heads but one",
    "none": "normalization", "batch": "layer normalization (batch normalization instead)",
    "post": "nothing (post-norm)", "post-batch": "layer normalization (batch normalization instead), post-norm",
}  # fmt: skip
Seeds = dict[int, dict[str, Any]]  # record of each seed


@cache
def records() -> dict[str, dict[str, Seeds]]:
    """Return the records by group, row and seed."""
    found: dict[str, dict[str, Seeds]] = {group: {} for group in GROUPS}
    pattern = re.compile(rf"parts-({'|'.join(GROUPS)})(?:-more)?-(\d+)-({'|'.join(ROWS)})")
    for name, record in results_keep.kept().items():
        if parts := pattern.fullmatch(name):
            found[parts[1]].setdefault(parts[3], {})[int(parts[2])] = record
    return {group: {row: rows[row] for row in ROWS if row in rows} for group, rows in found.items()}


def value(record: dict[str, Any], metric: str) -> float:
    """Return a metric of a record."""
    return float(record["metrics"][metric]["value"])


def curve(record: dict[str, Any]) -> list[tuple[int, float]]:
    """Return the steps of all validations, with their losses."""
    return [(entry["step"], entry["loss"]) for entry in record["curve"]]


def mark(group: str) -> float | None:
    """Return the loss to which the steps of all rows are counted: the loss of the full model at half of its steps.

    It is rounded up to a tenth. None if there is no record of the full model.
    """
    full = [curve(record) for record in records()[group].get("full", {}).values()]
    return None if not full else -(-mean(points[(len(points) - 1) // 2][1] for points in full) * 10 // 1) / 10


def steps_to(points: list[tuple[int, float]], loss: float) -> float | None:
    """Return the first step with this validation loss, interpolated; None if it is not reached.

    >>> steps_to([(100, 5.0), (200, 4.0), (300, 3.0)], 3.5)
    250.0
    >>> steps_to([(100, 5.0)], 5.0), steps_to([(100, 5.0)], 4.0)
    (100.0, None)
    """
    if points[0][1] <= loss:
        return float(points[0][0])
    for (before, high), (after, low) in pairwise(points):
        if low <= loss:
            return before + (high - loss) / (high - low) * (after - before) if isfinite(high) else float(after)
    return None


def spread(values: list[float], digits: int) -> str:
    """Return the mean of several seeds, with its 95% interval.

    >>> spread([30.0], 1), spread([30.0, 31.0, 32.0], 1)
    ('30.0', '31.0 (28.5 to 33.5)')
    """
    if not all(map(isfinite, values)):
        return "diverged"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    half = half_width(values)
    return f"{mean(values):z.{digits}f} ({mean(values) - half:z.{digits}f} to {mean(values) + half:z.{digits}f})"


def _losses(values: list[float]) -> str:
    """Return the mean loss with its interval, or "diverged" if it is larger than the loss of a uniform guess."""
    return spread(values, 2) if max(values) < log(SETTINGS.vocabularies[0]) else "diverged"


def change(group: str, row: str, metric: str = METRIC) -> list[float]:
    """Return the metric of a row minus the same metric of the full model with its norm, for each common seed."""
    rows = records()[group]
    base = rows.get("post" if row.startswith("post-") else "full", {})
    return [value(record, metric) - value(base[seed], metric) for seed, record in rows[row].items() if seed in base]


def table(group: str) -> str:
    """Return BLEU, validation loss, and steps to a fixed loss of each row of a group."""
    if not (rows := records()[group]):
        return ""
    goal, head = mark(group), [f"{GROUPS[group]}, without", "BLEU", "change of BLEU", "validation loss"]
    head += [f"steps to loss {goal:.1f}" if goal is not None else "steps", "seeds"]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for row, seeds in rows.items():
        reached = [steps_to(curve(record), goal) for record in seeds.values()] if goal is not None else []
        steps = [step for step in reached if step is not None]
        changed = change(group, row) if row not in ("full", "post") else []
        lines.append([
            NAMES[row], spread([value(record, METRIC) for record in seeds.values()], 1),
            spread(changed, 1) if changed else "", _losses([value(record, "loss") for record in seeds.values()]),
            f"{mean(steps):,.0f}" if steps and len(steps) == len(reached) else "not reached", str(len(seeds)),
        ])  # fmt: skip
    return markdown(lines)


def main_tables() -> str:
    """Return the table of each group."""
    return "\n\n".join(filter(None, map(table, GROUPS))) or "No record exists yet."


def short_table() -> str:
    """Return the change of BLEU without each part in each group, for docs/explanation/why-each-part.md."""
    groups = [group for group, rows in records().items() if rows]
    rows = [row for row in ROWS if row not in ("full", "post") and any(row in records()[group] for group in groups)]
    if not rows:
        return "No record exists yet."
    lines = [["without", *(f"BLEU, {GROUPS[group]}" for group in groups)], ["---", *["--:"] * len(groups)]]
    full = [[value(record, METRIC) for record in records()[group].get("full", {}).values()] for group in groups]
    lines.append([NAMES["full"], *(spread(scores, 1) if scores else "" for scores in full)])
    for row in rows:
        changes = [change(group, row) if row in records()[group] else [] for group in groups]
        lines.append([NAMES[row], *(_signed(found) if found else "" for found in changes)])
    return markdown(lines)


def _signed(values: list[float]) -> str:
    """Return the mean change of several seeds with its sign and its 95% interval.

    >>> _signed([-1.0, -2.0, -3.0])
    '-2.0 (-4.5 to 0.5)'
    """
    text = spread(values, 1)
    return text if text.startswith("-") or text == "diverged" else f"+{text}"


def draw_curves(out: Path) -> Path | None:
    """Draw the validation loss of each row over the steps, a panel for each group, with the range of the seeds."""
    from matplotlib import pyplot

    groups = [group for group, rows in records().items() if rows]
    if not groups:
        return None
    size = (3 + 3.5 * len(groups), 4.6)
    figure, axes = pyplot.subplots(1, len(groups), figsize=size, squeeze=False, layout="constrained")
    for axis, group in zip(axes[0], groups, strict=True):
        shown: list[float] = []  # losses that set the limits of the panel
        for row, seeds in records()[group].items():
            color, line = gradients.STYLES[row]
            points = list(zip(*(curve(record) for record in seeds.values()), strict=True))
            losses = [[loss for _, loss in point] for point in points]
            shown += [loss for each in losses for loss in each if loss < DIVERGED]
            steps = [point[0][0] for point in points]
            axis.plot(steps, [mean(each) for each in losses], line, color=color, label=row)
            axis.fill_between(steps, [*map(min, losses)], [*map(max, losses)], color=color, alpha=0.15, linewidth=0)
        axis.set(title=GROUPS[group], xlabel="training steps", ylim=(min(shown) - 0.1, max(shown) + 0.1))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("validation loss")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)
    return out


def draw_gradients(out: Path) -> Path | None:
    """Draw the gradient norm of each layer at the start of training."""
    if not (found := _gradients()):
        return None
    gradients.draw(found, out)
    return out


def _gradients() -> dict[str, gradients.Norms]:
    path = RESULTS / "parts" / "gradients.json"
    rows: dict[str, gradients.Norms] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
    return rows


def curves_picture() -> str:
    shown = any(records().values())
    return f"![Validation loss over the steps, without each part](../images/{CURVES.name})" if shown else ""


def gradients_picture() -> str:
    return f"![Gradient norm of each layer, without each part](../images/{GRADIENTS.name})" if _gradients() else ""


PARTS = (main_tables, curves_picture, gradients_picture)

if __name__ == "__main__":
    print(draw_curves(CURVES), draw_gradients(GRADIENTS))
