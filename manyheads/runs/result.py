"""Report of a finished training run, with the command that uses the trained model."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from manyheads.training.record import Metrics

MAX_WORDS = 12  # maximum number of words of an example text


class RunResult(dict[str, Any]):
    """Content of the file `result.json` of a finished run, a dictionary. Notebooks show its metrics as tables.

    next_command  command that uses the trained model on an item of the held-out data, or an empty text
    """

    next_command = ""

    @property
    def scores(self) -> dict[str, Metrics]:
        """Metrics of the final weights by split: the test data, if they were scored, and the validation data.

        The entry `metrics` contains test scores, and validation scores of other names.
        """
        metrics = self.get("metrics", {}).items()
        scored = {name: metric for name, metric in metrics if metric.get("signature") != "validation"}
        scores = {self.get("scored", ""): scored, "validation": self.get("validation", {})}
        return {split: metrics for split, metrics in scores.items() if metrics}

    def _repr_html_(self) -> str:
        tables = (f"{escape(split)} {metrics_html(metrics)}" for split, metrics in self.scores.items())
        return f"{escape(self['recipe'])}, {self['wall_seconds']} s {''.join(tables)}"


def metrics_html(metrics: Metrics) -> str:
    """Return an HTML table of metrics with their values and signatures."""
    rows = (
        f"<tr><td>{escape(name)}</td><td style='text-align: right'>{metric['value']:.4f}</td>"
        f"<td>{escape(metric.get('signature', ''))}</td></tr>"
        for name, metric in metrics.items()
    )
    return f"<table>{''.join(rows)}</table>"


def example_command(out: Path, held: Any) -> str:
    """Return the command that applies the model in the directory `out` to an item of the data set `held`.

    Returns an empty text if the data set is of no kind that a command reads.
    """
    words = _example(held)
    return shlex.join(["manyheads", words[0], str(out), *words[1:]]) if words else ""


def _example(held: Any) -> list[str]:
    from manyheads.data.images.labeled_images import ImageData
    from manyheads.data.readers.conll import Tagged
    from manyheads.data.readers.documents import Documents
    from manyheads.data.readers.labeled import Labeled
    from manyheads.data.readers.parallel import Pairs
    from manyheads.data.readers.squad import Questions
    from manyheads.data.readers.texts import Texts

    match held:
        case Pairs():
            return ["translate", _brief(held.sources)]
        case Labeled(second_texts=None):
            return ["classify", _brief(held.texts)]
        case Labeled():
            return ["classify", _brief(held.texts[:1]), "--pair", _brief((held.second_texts or [])[:1])]
        case Tagged():
            return ["tag", _brief(" ".join(words) for words in held.words)]
        case Questions():
            question = held.items[0]
            return ["answer", "--question", question.question, "--context", question.context]
        case Texts():
            return ["generate", " ".join(next(held.parts()).content.split()[:4])]
        case Documents():
            return ["fill", f"{_brief(held.documents[0]).rpartition(' ')[0]} [MASK]"]
        case ImageData():
            source = held.items[0].source
            return ["classify", str(source) if isinstance(source, Path) else "IMAGE.png"]
    return []


def _brief(texts: Iterable[str]) -> str:
    """Return the first short text, or the first words of the first text."""
    words = [text.split() for text in islice(texts, 20)]
    return " ".join(next((text for text in words if 2 < len(text) <= MAX_WORDS), words[0])[:MAX_WORDS])
