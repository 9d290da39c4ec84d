"""Scoring a model on test data, and two of them against each other, whatever they do."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from torch import Tensor

from manyheads.data.sources.recorded import source_of
from manyheads.data.sources.source import Source
from manyheads.errors import UserError
from manyheads.files import parse_json
from manyheads.training import own_runs
from manyheads.training.record import Metrics

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Any)
RESAMPLES, SHOWN = 1000, 5
FEW = 10  # items that a bootstrap needs: resamples of fewer hardly differ


def values(metrics: Metrics) -> dict[str, float]:
    """The metrics without how they were measured."""
    return {name: metric["value"] for name, metric in metrics.items()}


@dataclass(frozen=True)
class Outcome:
    """How a model did on test data, item by item.

    quality  of each output, more is better: 1.0 or 0.0 for right or wrong, where nothing finer is said.
    metrics  on all of them.
    unit     what the quality is
    """

    ranked_by: ClassVar[str] = ""  # what `ranks` are; "": the unit

    inputs: list[str]
    outputs: list[str]
    references: list[str]
    quality: list[float]
    metrics: Metrics
    unit: str = field(default="right", kw_only=True)

    @property
    def ranks(self) -> list[float]:
        """Of each item what is compared to find those that changed most."""
        return self.quality

    def bootstrap(self, other: Outcome) -> dict[str, Any]:
        """Is `other` better by more than chance (Koehn 2004)? The mean quality of 1,000 resamples of the items.

        p_value is the share of resamples whose difference is as far from the observed one as zero is.
        """
        mine, theirs = np.array(self.quality), np.array(other.quality)
        change = theirs - mine
        random, items = np.random.default_rng(1), len(change)
        resampled = np.array([change[random.integers(items, size=items)].mean() for _ in range(RESAMPLES)])
        extreme = np.abs(resampled - change.mean()) >= abs(change.mean())
        return {
            self.unit: {
                "first": float(mine.mean()), "second": float(theirs.mean()), "difference": float(change.mean()),
                "p_value": float((extreme.sum() + 1) / (RESAMPLES + 1)), "resamples": RESAMPLES,
            }
        }  # fmt: skip


@dataclass(frozen=True)
class LabelOutcome(Outcome):
    """Where inputs, outputs and references are items and their labels.

    probabilities  that the model gives the right label of each: by their change items are ranked in a comparison
    """

    ranked_by: ClassVar[str] = "probability of the right label"

    probabilities: list[float]

    @classmethod
    def of(
        cls, inputs: list[str], truth: Sequence[str], labels: Sequence[str], scores: Tensor, metrics: Metrics
    ) -> LabelOutcome:
        """From the right label of each item and the log-probabilities (N, L) of all labels."""
        outputs = [labels[i] for i in scores.argmax(1)]
        probabilities = [float(row[labels.index(label)].exp()) for row, label in zip(scores, truth, strict=True)]
        right = [float(output == label) for output, label in zip(outputs, truth, strict=True)]
        return cls(inputs, outputs, list(truth), right, metrics, probabilities)

    @property
    def ranks(self) -> list[float]:
        return self.probabilities

    def by_label(self) -> list[dict[str, Any]]:
        """Of each label: how many items have it, and precision, recall and F1 (0 where nothing is counted)."""
        wanted, given = Counter(self.references), Counter(self.outputs)
        right = Counter(a for a, b in zip(self.outputs, self.references, strict=True) if a == b)
        return [
            {
                "label": label, "items": wanted[label],
                "precision": right[label] / max(given[label], 1), "recall": right[label] / max(wanted[label], 1),
                "f1": 2 * right[label] / (given[label] + wanted[label]),
            }
            for label in sorted({*wanted, *given}, key=lambda label: (len(label) if label.isdecimal() else 0, label))
        ]  # fmt: skip


class Predictor(Protocol):
    """What `manyheads.load` gives: a model with its verbs."""

    @property
    def path(self) -> Path: ...

    def outcome(self, data: str | None = None, *, skip_bad_lines: bool = False) -> Outcome:
        """On the run's own test data, or on `data`. Raises UserError where there are none."""
        ...


def record_of(model: Path) -> dict[str, Any]:
    """The result.json of a run; nothing for a model that was not trained here."""
    record = model / "result.json"
    try:
        known = parse_json(record.read_text(encoding="utf-8")) if record.is_file() else {}
    except ValueError:
        known = None
    parts = ("data", "reading", "decoding", "windows", "rules")
    if not isinstance(known, dict) or not all(isinstance(known.get(part, {}), dict) for part in parts):
        raise UserError(f"{record}: damaged, not the record of a run: delete it and name the test files with --data")
    return known


def trust(model: str | Path) -> None:
    """From now on what the record of this run names may be opened, as if it had been trained here.

    Raises UserError where there is no such record.
    """
    if not (data := record_of(Path(model)).get("data")):
        raise UserError(f"{model} has no result.json that names data: there is nothing to trust")
    own_runs.add(data)


def scored_data(
    model: Path,
    data: str | None,
    unrecorded: Source[D],
    *,
    skip_bad_lines: bool = False,
    labels: Sequence[str] = (),
    split: str = "test",
    **settings: Any,
) -> D:
    """What a model is scored on: the data of its run, which are found again, or `data`, which are read as its training
    data were. Raises UserError where a run from elsewhere names files and nobody asked for them (see `trust`).

    unrecorded  how they are read where there is no record, as the model was not trained here
    labels      those of the model
    settings    of the source, in place of the training's
    """
    if skip_bad_lines and data is None:
        raise UserError("--skip-bad-lines is for other data than the run's: name them with --data, or leave it out")
    try:
        record = record_of(model)
        source = source_of(record)
        if data is None and source is not None:
            named = [repr(path[:300]) for path in (source.data, source.validation, source.test) if path is not None]
            if named and not own_runs.is_own(record["data"]):
                raise UserError(f"you have not trained this run here, and its record names {', '.join(named)}: to open"
                                 " them, --trust; to score on other data, --data PATH")  # fmt: skip
            return source.again(split, labels)
    except UserError as error:
        raise UserError(f"{model}: {error}") from None
    if data is None:
        raise UserError(f"{model} has no result.json that tells its {split} data: name some with --data PATH")
    if source is None or type(source) is not type(unrecorded):
        source = unrecorded
    items: D = replace(source, skip_bad_lines=skip_bad_lines, **settings).named(data, labels)
    for reason, count in items.skips.items():
        logger.info(f"skipped {count:,} of {reason}")
    return items


def evaluate(predictor: Predictor, data: str | None = None) -> Metrics:
    """Metrics on the run's test data, or on `data`."""
    return predictor.outcome(data).metrics


def compare(
    first: Predictor, second: Predictor, data: str | None = None, *, skip_bad_lines: bool = False
) -> dict[str, Any]:
    """Both on the same test data: metrics, a paired bootstrap (without a p_value for fewer than 10 items), how many
    items became better and worse, and those of both that changed most."""
    if not (isinstance(first, type(second)) or isinstance(second, type(first))):
        kinds = " and ".join(f"{type(predictor).__name__} ({predictor.path})" for predictor in (first, second))
        raise UserError(f"{kinds}: only models that do the same can be compared")
    one, two = (predictor.outcome(data, skip_bad_lines=skip_bad_lines) for predictor in (first, second))
    if (one.inputs, one.references) != (two.inputs, two.references):
        hint = "name one corpus with --data" if data is None else f"they do not read {data} as the same items"
        raise UserError(f"{first.path} and {second.path} have different test data: {hint}")
    changes = [
        {"input": item, "reference": right, "first": a, "second": b, "change": round(after - before, 4)}
        for item, right, a, b, before, after in zip(
            one.inputs, one.references, one.outputs, two.outputs, one.ranks, two.ranks, strict=True
        )
    ]
    changes.sort(key=lambda item: item["change"])
    worse = [item for item in changes[:SHOWN] if item["change"] < 0]
    better = [item for item in changes[: -SHOWN - 1 : -1] if item["change"] > 0]
    differences = np.array(two.quality) - np.array(one.quality)
    bootstrap = one.bootstrap(two)
    if len(one.inputs) < FEW:
        bootstrap = {name: {**test, "p_value": None} for name, test in bootstrap.items()}
    return {
        "first": {"model": str(first.path), "metrics": one.metrics},
        "second": {"model": str(second.path), "metrics": two.metrics},
        "items": len(one.inputs),
        "unit": one.unit,
        "bootstrap": bootstrap,
        "better": int((differences > 0).sum()),
        "worse": int((differences < 0).sum()),
        "ranked_by": one.ranked_by or one.unit,
        "most_changed": better + worse,
    }
