"""Comparison of two models on the same test data."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from manyheads.analysis.drawing import HUES, new_figure, save
from manyheads.calls import checked, shown
from manyheads.displays import Table, html_table
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.tasks.evaluation import Predictor
from manyheads.tasks.loading import load

MAX_CHANGES = 5
# Minimum number of test items for a bootstrap test. With fewer items, the resamples are too similar to each other.
MIN_BOOTSTRAP_ITEMS = 10


class Comparison(JsonObject):
    """Comparison of two models, a dictionary. Notebooks show the metrics, the test, and the items that changed most."""

    def _repr_html_(self) -> str:
        first, second = self["first"], self["second"]
        rows = [
            (name, metric["value"], (other := second["metrics"][name]["value"]), other - metric["value"])
            for name, metric in first["metrics"].items()
        ]
        tests = Table({"bootstrap": name, **test} for name, test in self["bootstrap"].items())
        items = [
            [item[key] for key in ("change", "input", "reference", "first", "second")] for item in self["most_changed"]
        ]
        return (
            f"<p>1: {escape(first['model'])}, 2: {escape(second['model'])}, {self['items']:,} items; "
            f"{self['better']:,} are better with 2, {self['worse']:,} with 1</p>"
            + html_table(["metric", "1", "2", "2 - 1"], rows) + tests._repr_html_()
            + html_table([f"change of {self['ranked_by']}", "item", "truth", "model 1", "model 2"], items)
        )  # fmt: skip

    def draw(self, path: str | Path) -> None:
        """Draw the difference of each tested score with its 95% interval in a PNG, SVG or PDF file.

        Raises UserError if there is no interval.
        """
        tests = {name: test for name, test in self["bootstrap"].items() if "low" in test}
        if not tests:
            raise UserError("found no interval of a difference to draw: expected a bootstrap test")
        figure = new_figure(6, 0.8 + 0.7 * len(tests))
        panel = figure.subplots()
        panel.axvline(0, color="gray", linewidth=1)
        for row, test in enumerate(tests.values()):
            panel.plot([test["low"], test["high"]], [row, row], color=HUES[0], linewidth=3, solid_capstyle="butt")
            panel.plot(test["difference"], row, "o", color=HUES[0])
        panel.set_yticks(range(len(tests)), tests)
        names = (Path(self[side]["model"]).name for side in ("second", "first"))
        panel.set(ylim=(len(tests) - 0.5, -0.5), xlabel=f"{' - '.join(names)}, 95% interval of {self['items']:,} items")
        save(figure, path)


@checked
def compare(
    first: Predictor | str | Path, second: Predictor | str | Path, data: object = None, *, skip_bad_lines: bool = False
) -> Comparison:
    """Compare two models on the same test data.

    first, second  models, as predictors or as paths of their directories
    data           test data. By default, the test data of the training runs

    Returns the metrics of both models, a paired bootstrap test, the number of items on which the second model is better
    and worse, and the items that changed most in both directions, the largest change first. Notebooks show tables. With
    fewer than 10 items the test has no p_value. Raises UserError if the models do different tasks or have different
    test data.

        >>> comparison = manyheads.compare(classifier, classifier, "labeled.tsv")
        >>> comparison["better"], comparison["worse"]
        (0, 0)
    """
    first, second = (load(model) if isinstance(model, str | Path) else model for model in (first, second))
    for predictor in (first, second):
        if not isinstance(predictor, Predictor):
            raise UserError(
                f"{shown(predictor)} has no predictions to score: expected two models, or their directories"
            )
    if not (isinstance(first, type(second)) or isinstance(second, type(first))):
        kinds = " and ".join(f"{type(predictor).__name__} ({predictor.path})" for predictor in (first, second))
        raise UserError(f"{kinds}: expected two models of the same task")
    old, new = (predictor.outcome(data, skip_bad_lines=skip_bad_lines) for predictor in (first, second))
    if (old.inputs, old.references) != (new.inputs, new.references):
        hint = "give the same data for both with --data" if data is None else f"the two models read {data} differently"
        raise UserError(f"{first.path} and {second.path} have different test items: {hint}")
    changes = [
        {"input": item, "reference": right, "first": a, "second": b, "change": round(after - before, 4)}
        for item, right, a, b, before, after in zip(
            old.inputs, old.references, old.outputs, new.outputs, old.ranks, new.ranks, strict=True
        )
    ]
    changes.sort(key=lambda item: item["change"])
    worse = [item for item in changes[:MAX_CHANGES] if item["change"] < 0]
    better = [item for item in changes[: -MAX_CHANGES - 1 : -1] if item["change"] > 0]
    changed = sorted(better + worse, key=lambda item: -abs(item["change"]))
    differences = np.array(new.quality) - np.array(old.quality)
    bootstrap = old.bootstrap(new)
    if len(old.inputs) < MIN_BOOTSTRAP_ITEMS:
        bootstrap = {name: {**test, "p_value": None} for name, test in bootstrap.items()}
    return Comparison({
        "first": {"model": str(first.path), "metrics": old.metrics},
        "second": {"model": str(second.path), "metrics": new.metrics},
        "items": len(old.inputs),
        "unit": old.unit,
        "bootstrap": bootstrap,
        "better": int((differences > 0).sum()),
        "worse": int((differences < 0).sum()),
        "ranked_by": old.ranked_by or old.unit,
        "most_changed": changed,
    })  # fmt: skip
