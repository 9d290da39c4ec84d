"""Evaluation of a classifier on test data, with reports by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from manyheads.calls import checked_methods
from manyheads.core.config import TargetKind
from manyheads.data.readers.labeled import label_order, label_sets
from manyheads.displays import Confusion, Table
from manyheads.files import JsonObject
from manyheads.tasks.evaluation import Counts, EvaluationResult
from manyheads.tasks.label_metrics import average_precision
from manyheads.training.record import Metrics


@checked_methods
@dataclass(frozen=True, repr=False)
class LabelEvaluation(EvaluationResult):
    """Result of a classifier on test data. The outputs and references are labels.

    probabilities  probability that the model assigns to the correct label of each item. A comparison of two models
                   sorts the items by the difference of this probability
    labels         labels of the model, in class order
    scores         (N, L) probability of each label
    kind           "classes" for one label per item; "multi-label" for several labels per item, joined by "|"
    """

    ranked_by: ClassVar[str] = "probability of the right label"

    probabilities: list[float]
    labels: tuple[str, ...]
    scores: NDArray[np.float32] = field(compare=False)
    kind: TargetKind = "classes"

    @classmethod
    def of(
        cls, inputs: list[str], truth: Sequence[str], labels: Sequence[str], scores: Tensor, metrics: Metrics
    ) -> LabelEvaluation:
        """Create the result of a classifier with one label per item.

        truth   correct label of each item
        labels  labels of the model, in class order
        scores  (N, L) log-probabilities of all labels
        """
        outputs = [labels[i] for i in scores.argmax(1)]
        probabilities = [float(row[labels.index(label)].exp()) for row, label in zip(scores, truth, strict=True)]
        right = [float(output == label) for output, label in zip(outputs, truth, strict=True)]
        confidences = [round(p, 4) for p in scores.amax(1).exp().tolist()]
        return cls(
            inputs, outputs, list(truth), right, metrics, probabilities, tuple(labels), scores.exp().numpy(),
            confidences=confidences,
        )  # fmt: skip

    @property
    def ranks(self) -> list[float]:
        return self.probabilities

    @property
    def truth(self) -> NDArray[np.bool_]:
        """True for each correct label of an item, (N, L), for metrics of scikit-learn."""
        return self._indicators(self.references)

    @property
    def predicted(self) -> NDArray[np.bool_]:
        """True for each predicted label of an item, (N, L)."""
        return self._indicators(self.outputs)

    def _indicators(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        index = {label: i for i, label in enumerate(self.labels)}
        found = np.zeros((len(texts), len(self.labels)), bool)
        for row, labels in zip(found, label_sets(texts, self.kind), strict=True):
            row[[index[label] for label in labels]] = True
        return found

    def _scores(self, index: int) -> JsonObject:
        truth = {"truth_probability": round(self.probabilities[index], 4)} if self.kind == "classes" else {}
        return {**super()._scores(index), **truth}

    def by_label(self) -> Table:
        """Return the item count, precision, recall and F1 of each label, as one dictionary per label.

        The recall of a label is also its accuracy: the fraction of its items that the model recognizes. A ratio whose
        denominator is zero has the value 0. For several labels per item, each label also has its average precision.
        For one label per item, labels that do not occur are left out.
        """
        truth, predicted = self.truth, self.predicted
        counts = np.stack([truth & predicted, predicted, truth]).sum(1).T.tolist()  # (L, 3)
        rows = [Counts(*row).row(label) for label, row in zip(self.labels, counts, strict=True)]
        if self.kind == "classes":
            by_name = dict(zip(self.labels, rows, strict=True))
            return Table(by_name[label] for label in label_order({*self.references, *self.outputs}))
        precisions = map(average_precision, self.scores.T, truth.T)
        return Table({**row, "average_precision": value} for row, value in zip(rows, precisions, strict=True))

    def confusion(self) -> Confusion:
        """Return the confusion matrix: the labels that occur, and the item counts (true label, predicted label).

        For several labels per item, the result is all labels, and a matrix [[neither, predicted], [true, both]] for
        each of them, (L, 2, 2).
        """
        if self.kind == "multi-label":
            t, p = self.truth, self.predicted
            return Confusion(self.labels, np.stack([~t & ~p, ~t & p, t & ~p, t & p]).sum(1).T.reshape(-1, 2, 2))
        labels = label_order({*self.references, *self.outputs})
        counts = Counter(zip(self.references, self.outputs, strict=True))
        rows = [[counts[truth, output] for output in labels] for truth in labels]
        return Confusion(labels, np.array(rows, dtype=np.int64))
