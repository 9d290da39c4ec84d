"""Report of a finished training run."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.training.record import Metrics

MAX_WORDS = 12  # maximum number of words of an example text


class RunResult(JsonObject):
    """Content of the file `result.json` of a finished run, a dictionary. Notebooks show its metrics as tables.

    next_command  command that uses the trained model on an item of the held-out data, or an empty text
    """

    next_command = ""

    @property
    def scores(self) -> dict[str, Metrics]:
        """Metrics of the final weights by split: "test", if test data were scored, and "validation".

        The dictionary `metrics` in result.json mixes both: it contains the test scores, and those validation scores
        that have other names.
        """
        metrics = self.get("metrics", {}).items()
        scored = {name: metric for name, metric in metrics if metric.get("signature") != "validation"}
        scores = {self.get("scored", ""): scored, "validation": self.get("validation", {})}
        return {split: metrics for split, metrics in scores.items() if metrics}

    def __repr__(self) -> str:
        parts = [self.get("recipe", "stopped run")]
        for split, metrics in self.scores.items():
            scores = ", ".join(f"{name} {metric['value']:.4f}" for name, metric in metrics.items())
            parts.append(f"{split}: {scores}" if split else scores)
        return f"<{type(self).__name__} {'; '.join(parts)}>"

    def _repr_html_(self) -> str:
        tables = (f"{escape(split)} {metrics_html(metrics)}" for split, metrics in self.scores.items())
        return f"<p>{escape(self['recipe'])}, {self['wall_seconds']} s</p>{''.join(tables)}"


def metrics_html(metrics: Metrics) -> str:
    """Return an HTML table of metrics with their values and signatures."""
    rows = (
        f"<tr><td>{escape(name)}</td><td style='text-align: right'>{metric['value']:.4f}</td>"
        f"<td>{escape(metric.get('signature', ''))}</td></tr>"
        for name, metric in metrics.items()
    )
    return f"<table>{''.join(rows)}</table>"


def brief(texts: Iterable[str]) -> str:
    """Return a short example text: the first text with 3 to `MAX_WORDS` words, or the first words of a longer text."""
    words = [text.split() for text in islice(texts, 20)]
    return " ".join(next((text for text in words if 2 < len(text) <= MAX_WORDS), words[0])[:MAX_WORDS])
