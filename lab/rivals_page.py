"""`python -m lab.rivals_page`: draw the picture of docs/papers/rivals.md from the records; its tables.

The records are those of `translation/rivals` in `runs/`, and two files in `rivals/`: `seconds.json`, the duration of a
training step of each model (`python -m lab.rivals_seconds`), and `differences-LANGUAGE.json`, paired bootstrap
intervals (`python -m lab.rivals_compare`). `ensemble-fr.json` is what `manyheads evaluate --ensemble --json` printed.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, variance
from typing import Any

from lab.colors import MODEL_COLORS
from lab.complexity_page import markdown
from lab.records import RESULTS, STUDENT, matching
from papers.rivals.recipes import RIVAL_ROWS

FIGURE = Path("docs/images/rivals.png")
METRIC = "bleu_moses_lc"
NAMES = {
    "lstm": "LSTM (Sutskever 2014)", "lstm-dot": "LSTM, dot attention (Luong 2015)",
    "gru-additive": "GRU, additive attention (Bahdanau 2015)", "gnmt": "GNMT-style (Wu 2016)",
    "lstm-experts": "LSTM, experts (Shazeer 2017)", "deep-att": "Deep-Att (Zhou 2016)",
    "convs2s": "ConvS2S (Gehring 2017)", "bytenet": "ByteNet (Kalchbrenner 2016)",
    "transformer": "Transformer (Vaswani 2017)", "transformer-post": "Transformer, post-norm",
    "experts": "Transformer, experts (Fedus 2021)",
}  # fmt: skip
CLAIM = 1  # lead of the Transformer in BLEU that is tested
# models about which table 2 claims nothing: Transformers, and its mixture of experts is an LSTM
NO_RIVALS = ("transformer-post", "experts")
MIN_SEEDS = 3  # of a model, so that its seeds count in the deviation between seeds
NORMAL = 1.96  # 97.5% quantile of the normal distribution
MARKS = (30, 50)  # BLEU for which FLOPs and seconds are interpolated
Curve = list[dict[str, float]]


# name of a comparison: target language, number of steps, and words for its column
COMPARISONS = {"fr": ("fr", 2600, "en-fr"), "de": ("de", 2600, "en-de"), "long-fr": ("fr", 8000, "en-fr, 8,000 steps")}


@cache
def curves(target: str) -> dict[str, list[Curve]]:
    """Return the curves of each model, one for each seed, for translation from English in one of the COMPARISONS."""
    language, steps, _ = COMPARISONS[target]
    found: dict[str, list[Curve]] = {}
    for record in matching("translation/rivals", f"target={language}"):
        if record["steps"] == steps:
            found.setdefault(record["overrides"]["rows"], []).append(record["curve"])
    return {row: found[row] for row in RIVAL_ROWS if row in found}


def at(curve: Curve, budget: float, over: str = "flops") -> float:
    """Return BLEU at a budget, interpolated over its logarithm; the budget lies within the curve."""
    for before, after in pairwise(curve):
        if budget <= after[over]:
            share = (log(budget) - log(before[over])) / (log(after[over]) - log(before[over]))
            return before[METRIC] + share * (after[METRIC] - before[METRIC])
    raise ValueError(f"the curve ends at {curve[-1][over]:g} {over}, before {budget:g}")


def needed(curve: Curve, bleu: float, over: str = "flops") -> float | None:
    """Return the smallest budget with this BLEU, interpolated; None if the curve does not cross it."""
    for before, after in pairwise(curve):
        if before[METRIC] < bleu <= after[METRIC]:
            share = (bleu - before[METRIC]) / (after[METRIC] - before[METRIC])
            return exp(log(before[over]) + share * (log(after[over]) - log(before[over])))
    return None


def steps_in_seconds() -> dict[str, dict[str, Any]]:
    """Return the measured duration of a training step of each model, `seconds` and `precision`."""
    return _kept("seconds").get("rows", {})


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
    french, others = curves("fr"), {target: curves(target) for target in COMPARISONS if target != "fr"}
    others = {target: found for target, found in others.items() if found}
    if not french:
        return "No record exists yet."
    head = ["model", "active parameters", "BLEU en-fr", "seeds"]
    flops_head = f"training FLOPs, {COMPARISONS['fr'][1]:,} steps"
    head += [*(f"BLEU {COMPARISONS[target][2]}" for target in others), flops_head]
    rows = [head, ["---", *["--:"] * (len(head) - 1)]]
    runs = matching("translation/rivals")
    sizes = {record["overrides"]["rows"]: record["active_non_embedding"] for record in runs}
    for row, found in french.items():
        score = _spread([curve[-1][METRIC] for curve in found])
        other = [_spread([curve[-1][METRIC] for curve in of[row]]) if row in of else "" for of in others.values()]
        flops = mean(curve[-1]["flops"] for curve in found)
        rows.append([NAMES[row], f"{sizes[row]:,}", score, str(len(found)), *other, f"{flops / 1e12:,.0f} · 10¹²"])
    return markdown(rows)


def costs_table() -> str:
    """Return the speed of each model, and its FLOPs and minutes to two values of BLEU, English to French."""
    each, found = steps_in_seconds(), timed("fr")
    if not found:
        return ""
    head = ["model", "precision", "seconds a step"]
    head += [f"{what} to {bleu}" for bleu in MARKS for what in ("10¹² FLOPs", "minutes")]
    head += [f"tokens/s, {width}" for width in ("beam 1", "beam 5")]
    rows = [head, ["---", "---", *["--:"] * (len(head) - 2)]]
    for row, seeds in found.items():
        cells = [NAMES[row], each[row]["precision"], f"{each[row]['seconds']:.3f}"]
        for bleu in MARKS:
            for over, scale in (("flops", 1e12), ("seconds", 60)):
                budgets = [needed(curve, bleu, over) for curve in seeds]
                reached = [budget / scale for budget in budgets if budget is not None]
                cells.append(f"{mean(reached):,.1f}" if len(reached) == len(seeds) else "not reached")
        rows.append([*cells, *(f"{each[row]['tokens'][width]:,}" for width in ("beam 1", "beam 5"))])
    return markdown(rows)


def differences_table() -> str:
    """Return the lead of the Transformer over each other model, and the verdict on a lead of CLAIM BLEU."""
    head = ["rival", "languages", "lead at equal FLOPs", "lead after all steps", "95% interval", "detectable",
            f"leads by {CLAIM} BLEU"]  # fmt: skip
    rows = [head, ["---", "---", *["--:"] * 4, "---"]]
    for target, (_, _, words) in COMPARISONS.items():
        tested = differences(target)
        for row in (row for row in curves(target) if row in tested):
            low, high = interval(row, target)
            leads = (lead_at_equal_flops(row, target), tested[row]["difference"])
            rows.append([
                NAMES[row], words, *(f"{lead:+.1f}" for lead in leads), f"{low:+.1f} to {high:+.1f}",
                f"{(high - low) / 2:.1f}", "no claim" if row in NO_RIVALS else verdict(row, target),
            ])  # fmt: skip
    return markdown(rows) if len(rows) > 2 else ""


def lead_at_equal_flops(row: str, target: str) -> float:
    """Return the Transformer's lead over a model at the largest training cost that all models reach."""
    found = curves(target)
    budget = min(curve[-1]["flops"] for seeds in found.values() for curve in seeds)
    base, rival = (mean(at(curve, budget) for curve in found[name]) for name in ("transformer", row))
    return base - rival


def interval(row: str, target: str) -> tuple[float, float]:
    """Return the 95% interval of the Transformer's lead over a model, after all steps.

    It includes the test sentences (standard error of the paired bootstrap) and the seeds (deviation between seeds).
    Their squared standard errors are added. Student's t has the degrees of freedom of the deviation between seeds.
    """
    tested = differences(target)[row]
    low, high = tested["interval"]
    deviation, freedom = seed_deviation()
    runs = [len(curves(target)[name]) for name in ("transformer", row)]
    error = sqrt(((high - low) / 2 / NORMAL) ** 2 + deviation**2 * sum(1 / count for count in runs))
    half = STUDENT[freedom + 1] * error
    return tested["difference"] - half, tested["difference"] + half


def seed_deviation() -> tuple[float, int]:
    """Return the standard deviation of BLEU between seeds, English to French, and its degrees of freedom.

    It is pooled over the models with at least MIN_SEEDS seeds.
    """
    found = [[curve[-1][METRIC] for curve in seeds] for seeds in curves("fr").values() if len(seeds) >= MIN_SEEDS]
    freedom = sum(len(scores) - 1 for scores in found)
    return sqrt(sum((len(scores) - 1) * variance(scores) for scores in found) / freedom), freedom


def differences(target: str) -> dict[str, dict[str, Any]]:
    """Return the lead of the Transformer and its interval for each rival that was compared."""
    return _kept(f"differences-{target}").get("rows", {})


def verdict(row: str, target: str) -> str:
    """Return whether the Transformer leads a model by CLAIM BLEU: "shown", "refuted" or "not decided"."""
    return judgment(lead_at_equal_flops(row, target), *interval(row, target))


def judgment(lead: float, low: float, high: float) -> str:
    """Return whether a lead of CLAIM BLEU is shown, refuted or neither, by the rule that was fixed before the runs.

    >>> judgment(1.5, 1.2, 2.4), judgment(1.5, 0.8, 2.4), judgment(-0.9, -1.7, 0.3)
    ('shown', 'not decided', 'refuted')
    """
    if low > CLAIM and lead > CLAIM:
        return "shown"
    return "refuted" if high < CLAIM else "not decided"


def ensemble_table() -> str:
    """Return the score of an ensemble of Transformers, next to those of its models."""
    record = _kept("ensemble-fr")
    if not record:
        return ""
    singles = [curve[-1][METRIC] for curve in curves("fr")["transformer"]]
    rows = [["Transformers, en-fr", "BLEU"], ["---", "--:"]]
    rows += [[f"seed {seed}", f"{score:.1f}"] for seed, score in enumerate(singles, 1)]
    rows.append([f"ensemble of the {len(record['ensemble']) + 1}", f"{record['metrics'][METRIC]['value']:.1f}"])
    return markdown(rows)


def draw(out: Path) -> Path | None:
    """Draw BLEU over FLOPs and over seconds, a curve for each model, with the range of its seeds."""
    from matplotlib import pyplot

    if not timed("fr"):
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.8), sharey=True, layout="constrained")
    panels = ((axes[0], curves, "flops", 1e12, "training, 10¹² FLOPs"),
              (axes[1], timed, "seconds", 60, "training, minutes of one core"))  # fmt: skip
    for axis, curves_of, over, scale, label in panels:
        for row, seeds, line in [
            *((row, seeds, "-") for row, seeds in curves_of("fr").items()),
            *((row, seeds, "--") for row, seeds in curves_of("long-fr").items()),
        ]:
            points = list(zip(*seeds, strict=True))  # of each checkpoint, the entries of all seeds
            x = [mean(entry[over] for entry in entries) / scale for entries in points]
            y = [[entry[METRIC] for entry in entries] for entries in points]
            width, color = 2.4 if row == "transformer" else 1.4, MODEL_COLORS[row]
            name = NAMES[row] if line == "-" else f"{NAMES[row]}, {COMPARISONS['long-fr'][1]:,} steps"
            axis.plot(x, [mean(scores) for scores in y], line, color=color, linewidth=width, marker=".", label=name)
            axis.fill_between(x, [min(s) for s in y], [max(s) for s in y], color=color, alpha=0.2, linewidth=0)
        axis.set(xscale="log", xlabel=label)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("BLEU, English to French")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)
    return out


def picture() -> str:
    return f"![BLEU over training cost](../images/{FIGURE.name})" if timed("fr") else ""


def _kept(name: str) -> dict[str, Any]:
    """Return a record of the folder `rivals`, or an empty one if it does not exist yet."""
    path = RESULTS / "rivals" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _spread(scores: list[float]) -> str:
    """Return the mean, and the range of several seeds."""
    found = f"{mean(scores):.1f}"
    return found if len(scores) == 1 else f"{found} ({min(scores):.1f} to {max(scores):.1f})"


PARTS = (main_table, picture, differences_table, costs_table, ensemble_table)

if __name__ == "__main__":
    print(draw(FIGURE))
