"""`python -m lab.rivals_page`: draw the picture of docs/papers/rivals.md from the records; its tables.

The records are those of `translation/rivals` in `runs/`, and two files in `rivals/`: `seconds.json`, the duration of a
training step of each model (`python -m lab.rivals_seconds`), and `differences-LANGUAGE.json`, paired bootstrap
intervals (`python -m lab.rivals_compare`).
"""

from __future__ import annotations

import json
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from lab.complexity_page import markdown
from lab.records import RESULTS, records
from manyheads.tasks.translation.recipes import RIVAL_ROWS

FIGURE = Path("docs/images/rivals.png")
METRIC = "bleu_moses_lc"
NAMES = {
    "lstm": "LSTM (Sutskever 2014)", "lstm-dot": "LSTM, dot attention (Luong 2015)",
    "gru-additive": "GRU, additive attention (Bahdanau 2015)", "gnmt": "GNMT-style (Wu 2016)",
    "convs2s": "ConvS2S (Gehring 2017)", "bytenet": "ByteNet (Kalchbrenner 2016)",
    "transformer": "Transformer (Vaswani 2017)", "experts": "Transformer, experts (Shazeer 2017)",
}  # fmt: skip
COLORS = ("#999999", "#56b4e9", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#d55e00", "#000000")
MARKS = (30, 50)  # BLEU for which FLOPs and seconds are interpolated
Curve = list[dict[str, float]]


def curves(target: str) -> dict[str, list[Curve]]:
    """Return the curves of each model, one for each seed, for translation from English."""
    found: dict[str, list[Curve]] = {}
    for record in records():
        if record["recipe"] == "translation/rivals" and record["data"]["target"] == target:
            found.setdefault(_row(record), []).append(record["curve"])
    return {row: found[row] for row in RIVAL_ROWS if row in found}


def _row(record: dict[str, Any]) -> str:
    return next(name for name, row in RIVAL_ROWS.items() if row["preset"] == record["overrides"]["preset"])


def at(curve: Curve, budget: float, over: str = "flops") -> float:
    """Return BLEU at a budget, interpolated over its logarithm; the budget lies within the curve."""
    for before, after in pairwise(curve):
        if budget <= after[over]:
            share = (log(budget) - log(before[over])) / (log(after[over]) - log(before[over]))
            return before[METRIC] + share * (after[METRIC] - before[METRIC])
    raise ValueError(f"the curve ends at {curve[-1][over]:g} {over}, before {budget:g}")


def needed(curve: Curve, bleu: float, over: str = "flops") -> float | None:
    """Return the smallest budget with this BLEU, interpolated; None if the curve does not reach it."""
    for before, after in pairwise(curve):
        if before[METRIC] < bleu <= after[METRIC]:
            share = (bleu - before[METRIC]) / (after[METRIC] - before[METRIC])
            return exp(log(before[over]) + share * (log(after[over]) - log(before[over])))
    return None


def steps_in_seconds() -> dict[str, dict[str, Any]]:
    """Return the measured duration of a training step of each model, `seconds` and `precision`."""
    path = RESULTS / "rivals" / "seconds.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}


def timed(target: str) -> dict[str, list[Curve]]:
    """Return the curves with the entry `seconds` replaced by steps times the duration of a step, measured apart."""
    each = steps_in_seconds()
    return {
        row: [[{**point, "seconds": point["step"] * each[row]["seconds"]} for point in curve] for curve in found]
        for row, found in curves(target).items()
        if row in each
    }


def main_table() -> str:
    """Return the table in the form of table 2 of the paper: quality and training cost of each model."""
    french, german = curves("fr"), curves("de")
    if not french:
        return "No record exists yet."
    head = ["model", "active parameters", "BLEU en-fr", "seeds", "BLEU en-de", "training FLOPs"]
    rows = [head, ["---", *["--:"] * (len(head) - 1)]]
    sizes = {
        _row(record): record["active_non_embedding"] for record in records() if record["recipe"] == "translation/rivals"
    }
    for row, found in french.items():
        score = _spread([curve[-1][METRIC] for curve in found])
        other = _spread([curve[-1][METRIC] for curve in german[row]]) if row in german else ""
        flops = mean(curve[-1]["flops"] for curve in found)
        rows.append([NAMES[row], f"{sizes[row]:,}", score, str(len(found)), other, f"{flops / 1e12:,.0f} · 10¹²"])
    return markdown(rows)


def costs_table() -> str:
    """Return FLOPs and seconds that each model needs for two values of BLEU, English to French."""
    each, found = steps_in_seconds(), timed("fr")
    if not found:
        return ""
    head = ["model", "seconds a step", "precision"]
    head += [f"{what} to {bleu}" for bleu in MARKS for what in ("10¹² FLOPs", "minutes")]
    rows = [head, ["---", "--:", "---", *["--:"] * (len(head) - 3)]]
    for row, seeds in found.items():
        cells = [NAMES[row], f"{each[row]['seconds']:.3f}", each[row]["precision"]]
        for bleu in MARKS:
            for over, scale in (("flops", 1e12), ("seconds", 60)):
                budgets = [needed(curve, bleu, over) for curve in seeds]
                reached = [budget / scale for budget in budgets if budget is not None]
                cells.append(f"{mean(reached):,.1f}" if len(reached) == len(seeds) else "not reached")
        rows.append(cells)
    return markdown(rows)


def differences_table(target: str = "fr") -> str:
    """Return how far the Transformer leads each rival, at equal FLOPs and after all steps."""
    path = RESULTS / "rivals" / f"differences-{target}.json"
    if not path.exists():
        return ""
    tested = json.loads(path.read_text(encoding="utf-8"))["rows"]
    found = curves(target)
    budget = min(curve[-1]["flops"] for seeds in found.values() for curve in seeds)
    best = mean(at(curve, budget) for curve in found["transformer"])
    rows = [["rival", "lead at equal FLOPs", "lead after all steps", "95% interval"], ["---", "--:", "--:", "--:"]]
    for row, seeds in found.items():
        if row in tested:
            low, high = tested[row]["interval"]
            lead = best - mean(at(curve, budget) for curve in seeds)
            rows.append([NAMES[row], f"{lead:+.1f}", f"{tested[row]['difference']:+.1f}", f"{low:+.1f} to {high:+.1f}"])
    return markdown(rows)


def draw(out: Path) -> Path | None:
    """Draw BLEU over FLOPs and over seconds, a curve for each model, with the range of its seeds."""
    from matplotlib import pyplot

    if not timed("fr"):
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.6), sharey=True, layout="constrained")
    panels = ((axes[0], curves("fr"), "flops", 1e12, "training, 10¹² FLOPs"),
              (axes[1], timed("fr"), "seconds", 60, "training, minutes of one core"))  # fmt: skip
    for axis, found, over, scale, label in panels:
        for (row, seeds), color in ((item, COLORS[list(RIVAL_ROWS).index(item[0])]) for item in found.items()):
            points = list(zip(*seeds, strict=True))  # of each checkpoint, the entries of all seeds
            x = [mean(entry[over] for entry in entries) / scale for entries in points]
            y = [[entry[METRIC] for entry in entries] for entries in points]
            width = 2.4 if row == "transformer" else 1.4
            axis.plot(x, [mean(scores) for scores in y], color=color, linewidth=width, marker=".", label=NAMES[row])
            axis.fill_between(x, [min(s) for s in y], [max(s) for s in y], color=color, alpha=0.2, linewidth=0)
        axis.set(xscale="log", xlabel=label)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("BLEU, English to French")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)
    return out


def picture() -> str:
    return f"![BLEU over training cost](../images/{FIGURE.name})" if timed("fr") else ""


def _spread(scores: list[float]) -> str:
    """Return the mean, and the range of several seeds."""
    found = f"{mean(scores):.1f}"
    return found if len(scores) == 1 else f"{found} ({min(scores):.1f} to {max(scores):.1f})"


PARTS = (main_table, picture, differences_table, costs_table)

if __name__ == "__main__":
    print(draw(FIGURE))
