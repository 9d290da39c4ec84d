"""Targets of text and image models: one label per item, one number per item (regression), or several labels per item.

A target determines the loss of the logits, the metrics, the form of a prediction and the form of an evaluation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from manyheads.core.config import LabelConfig, TargetKind
from manyheads.data.readers.label_lists import SEPARATOR
from manyheads.data.readers.labeled import distinct_names, label_sets
from manyheads.directory import Loaded
from manyheads.errors import UserError, shown, similar
from manyheads.files import JsonMapping
from manyheads.interop.labels import LabelValue, typed_labels
from manyheads.runs.recipe import TargetConfig
from manyheads.tasks import label_metrics
from manyheads.tasks.evaluation import EvaluationResult, Located
from manyheads.tasks.label_evaluation import LabelEvaluation
from manyheads.training.loss import upcast
from manyheads.training.objective import Better
from manyheads.training.record import Metrics
from manyheads.training.run_directory import run_status

logger = logging.getLogger(__name__)

_METRICS: dict[TargetKind, dict[str, Better]] = {
    "classes": {"loss": "lower", "accuracy": "higher", "f1": "higher", "macro_f1": "higher", "mcc": "higher"},
    "regression": {"loss": "lower", "mse": "lower", "mae": "lower", "pearson": "higher", "spearman": "higher"},
    "multi-label": {"loss": "lower", "micro_f1": "higher", "macro_f1": "higher", "map": "higher"},
}


class LabeledItems(Located, Protocol):
    """Data set of items with labels, such as `Labeled` and `ImageData`."""

    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def target(self) -> TargetKind: ...
    @property
    def label_type(self) -> str: ...


@dataclass(frozen=True)
class Label:
    """Predicted label with its probability.

    label  name of the label; `classify` returns a value of the type that the training data had
    """

    label: LabelValue
    probability: float

    def __str__(self) -> str:
        return str(self.label)


Prediction = list[Label] | float  # labels of an item, most probable first, or its number
Shares = tuple[tuple[str, float], ...]  # names of labels with their probabilities, most probable first
SHOWN_LABELS = 3  # maximum number of labels next to an attention map


def shares(prediction: Prediction | list[Prediction]) -> Shares:
    """Return the labels in a prediction with their probabilities; empty if the prediction is a number."""
    labels = prediction if isinstance(prediction, list) else []
    return tuple((str(label), label.probability) for label in labels if isinstance(label, Label))


@dataclass(frozen=True, eq=False)
class Target:
    """Meaning of the logits (N, L) of a model.

    kind        "classes" for one label per item, "multi-label" for several, "regression" for a number
    labels      names of the L logits
    threshold   minimum probability of a predicted label in a multi-label model: one number, or a number by label
    calibrates  True: `measure` chooses the thresholds with the best F1 on the given items (`best_threshold`)
    positive    label that counts as positive in the F1 score of two classes. By default, the second label
    weights     factor of the loss of each class, (L,). In a multi-label model, it applies to the items with the label.
                By default, all factors are 1
    smoothing   label smoothing of the loss of classes
    label_type  type of the labels in the training data
    """

    kind: TargetKind
    labels: tuple[str, ...]
    threshold: float | dict[str, float] = 0.5
    positive: str | None = None
    weights: Tensor | None = None
    smoothing: float = 0.0
    label_type: str = "str"
    calibrates: bool = False

    @property
    def values(self) -> tuple[LabelValue, ...]:
        """The labels in the type of the training data."""
        return typed_labels(self.labels, self.label_type)

    def typed(self, predictions: Sequence[Prediction], single: bool) -> list[Label] | list[list[Label]]:
        """Convert predicted labels to the type that the labels have in the training data.

        single  True if the user gave a single item, so that its labels are returned instead of a list of one item
        """
        values: dict[LabelValue, LabelValue] = dict(zip(self.labels, self.values, strict=True))
        typed = [
            [Label(values[found.label], found.probability) for found in labels]
            for labels in predictions
            if isinstance(labels, list)
        ]
        return typed[0] if single else typed

    def numbers(self, predictions: Sequence[Prediction], single: bool) -> float | list[float]:
        """Return the predicted numbers as a list, or as a single number.

        single  True if the user gave a single item
        """
        numbers = [number for number in predictions if isinstance(number, float)]
        return numbers[0] if single else numbers

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of the reports that `manyheads evaluate` can give on the predictions."""
        return ("errors",) if self.kind == "regression" else ("by_label", "errors", "confusion")

    @property
    def metrics(self) -> Mapping[str, Better]:
        """Return the names of the metrics of a validation, with the direction in which each improves."""
        metrics = _METRICS[self.kind]
        return {name: metrics[name] for name in metrics if name != "f1" or len(self.labels) == 2}

    def truth(self, data: LabeledItems) -> Tensor:
        """Return the targets of the items of a data set as a tensor.

        These are class indices (N,), numbers (N,) for a regression, or 0 and 1 for each label (N, L) for a multi-label
        model. Raises UserError, with the location in the data, for a label that the model does not have.
        """
        if self.kind == "regression":
            return torch.tensor([float(number) for number in data.labels])
        index, sets = {label: i for i, label in enumerate(self.labels)}, label_sets(data.labels, data.target)
        for i, labels in enumerate(sets):
            if unknown := [label for label in labels if label not in index]:
                known = shown(self.labels, 8)
                raise UserError(f"{data.place(i)}: label {unknown[0]!r}: the model has only the labels {known}")
        if self.kind == "classes":
            return torch.tensor([index[label] for (label,) in sets])
        truth = torch.zeros(len(sets), len(self.labels))
        for row, labels in zip(truth, sets, strict=True):
            row[[index[label] for label in labels]] = 1
        return truth

    def loss(self, logits: Tensor, truth: Tensor, item_weights: Tensor | None = None) -> Tensor:
        """Return the loss of logits (N, L), summed over the N items.

        The loss of an item is the cross-entropy, the squared error for a regression, or the mean of the labels' binary
        cross-entropies for a multi-label model. A class weight multiplies the whole loss of an item, including label
        smoothing.

        item_weights  factor of the loss of each item, (N,); None: all factors are 1
        """
        losses = self._losses(upcast(logits), truth)
        return losses.sum() if item_weights is None else losses @ item_weights.to(losses)

    def _losses(self, logits: Tensor, truth: Tensor) -> Tensor:
        """Return the loss of each item, (N,)."""
        if self.kind == "regression":
            return F.mse_loss(logits[:, 0], truth.to(logits), reduction="none")
        weights = None if self.weights is None else self.weights.to(logits)
        if self.kind == "multi-label":
            several = F.binary_cross_entropy_with_logits(logits, truth.to(logits), reduction="none", pos_weight=weights)
            return several.mean(-1)
        if weights is None:
            return F.cross_entropy(logits, truth, reduction="none", label_smoothing=self.smoothing)
        losses = F.cross_entropy(logits, truth, weights, reduction="none")
        if not self.smoothing:
            return losses
        # Multiply the loss of an item by the weight of its class. PyTorch would multiply each smoothed probability by
        # the weight of its label, so that rare classes would dominate.
        factors = truth.to(logits) @ weights if truth.is_floating_point() else weights[truth]  # (N,)
        uniform = -logits.log_softmax(-1).mean(-1)
        return (1 - self.smoothing) * losses + self.smoothing * factors * uniform

    def correct(self, logits: Tensor, truth: Tensor) -> Tensor | None:
        """Return the number of items whose class is right, or None for other targets."""
        return (logits.detach().argmax(-1) == truth).sum() if self.kind == "classes" else None

    def measure(self, logits: Tensor, truth: Tensor) -> Metrics:
        """Return the metrics of logits (N, L), without the loss."""
        if self.kind == "regression":
            return label_metrics.regression_metrics(logits[:, 0].tolist(), truth.tolist())
        if self.kind == "multi-label":
            scores, expected = logits.sigmoid().numpy(), truth.numpy() > 0
            target = self.calibrated(scores, expected) if self.calibrates else self
            return label_metrics.multi_label_metrics(scores, expected, target.threshold)
        best = logits.argmax(1).tolist()
        return label_metrics.classification_metrics(best, truth.tolist(), self.labels, self.positive)

    def calibrated(self, scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> Target:
        """Return this target with the threshold of each label that has the best F1 on N items.

        scores  (N, L) probability of each label
        truth   (N, L) True for each label of an item
        """
        found = dict(zip(self.labels, map(label_metrics.best_threshold, scores.T, truth.T), strict=True))
        return replace(self, threshold=found, calibrates=False)

    def calibrated_by(self, validation: EvaluationResult) -> Target:
        """Return this target with the best thresholds for an evaluation on the validation data, and log them."""
        assert isinstance(validation, LabelEvaluation)
        target = self.calibrated(validation.scores, validation.truth)
        found = shown((f"{label} {limit:.2f}" for label, limit in target.limits().items()), 8)
        logger.info(f"thresholds with the best F1 on the validation data: {found}")
        return target

    def limits(self, threshold: float | None = None) -> dict[str, float]:
        """Return the minimum probability of each label, if it is predicted. None: the threshold of this target."""
        given = self.threshold if threshold is None else threshold
        return given if isinstance(given, dict) else dict.fromkeys(self.labels, given)

    def predictions(self, logits: Tensor, top: int | None = None, threshold: float | None = None) -> list[Prediction]:
        """Return the predictions from logits (N, L): for each item a number, or its labels, most probable first.

        top        number of labels to return. By default, one label; for a multi-label model, all labels above the
                   threshold
        threshold  minimum probability of a label, for a multi-label model. By default, the threshold of this target
        """
        self.check(top, threshold)
        if self.kind == "regression":
            return [float(number) for number in logits[:, 0]]
        several = self.kind == "multi-label"
        probabilities = logits.sigmoid() if several else logits.softmax(-1)
        limits = self.limits(threshold if several and top is None else 0.0)
        best, indices = probabilities.topk(min(top or (len(self.labels) if several else 1), len(self.labels)))
        return [
            [Label(self.labels[i], p) for p, i in zip(*row, strict=True) if p >= limits[self.labels[i]]]
            for row in zip(best.tolist(), indices.tolist(), strict=True)
        ]

    def evaluation(self, inputs: list[str], data: LabeledItems, logits: Tensor, metrics: Metrics) -> EvaluationResult:
        """Return the result of an evaluation on a data set.

        inputs   inputs to show, such as texts or paths of images
        logits   (N, L) logits of the model for the items
        metrics  metrics over all items, such as the result of `measure`
        """
        if self.kind == "classes":
            found = LabelEvaluation.of(inputs, data.labels, self.labels, logits.log_softmax(-1), metrics)
            return replace(found, data=data)
        truth, predicted = self.truth(data), self.predictions(logits)
        if self.kind == "regression":
            errors = (logits[:, 0] - truth).abs().tolist()
            return EvaluationResult(
                inputs, [f"{number:.4f}" for number in predicted], list(data.labels), [-error for error in errors],
                metrics, unit="negative absolute error", confidences=[round(error, 4) for error in errors],
                measure="error", data=data,
            )  # fmt: skip
        outputs = [SEPARATOR.join(sorted(map(str, labels))) for labels in predicted if isinstance(labels, list)]
        references = [SEPARATOR.join(sorted(labels)) for labels in label_sets(data.labels, data.target)]
        probabilities = logits.sigmoid()
        sure = (1 - (truth - probabilities).abs()).mean(1).tolist()
        limits = torch.tensor([*self.limits().values()], dtype=torch.float64)
        over = (probabilities >= limits).float()
        # for each item, the probability of each label that is missed or falsely predicted
        wrong = [
            SEPARATOR.join(f"{self.labels[i]} {p[i]:.4f}" for i in (row != right).nonzero().flatten().tolist())
            for p, row, right in zip(probabilities, over, truth, strict=True)
        ]
        total = (truth + over).sum(1)
        quality = torch.where(total > 0, 2 * (truth * over).sum(1) / total.clamp(min=1), 1.0).tolist()
        return LabelEvaluation(
            inputs, outputs, references, quality, metrics, sure, self.labels, probabilities.numpy(), self.kind,
            unit="F1 of the labels of an item", confidences=wrong, data=data,
        )  # fmt: skip

    def probabilities(self, logits: Tensor) -> NDArray[np.float32]:
        """Return the probability of each label, (N, L), from logits (N, L)."""
        probabilities = logits.sigmoid() if self.kind == "multi-label" else logits.softmax(-1)
        return probabilities.numpy()

    def check(self, top: int | None, threshold: float | None) -> None:
        """Raise UserError for invalid options of `predictions`, and for options that have no effect."""
        if top is not None and top < 1:
            raise UserError(f"top is {top}: expected 1 or more")
        if threshold is not None and not 0 <= threshold <= 1:
            raise UserError(f"threshold is {threshold}: expected 0 to 1")
        if threshold is not None and (self.kind != "multi-label" or top is not None):
            raise UserError("threshold applies to a model that predicts several labels per item, without top")
        if top is not None and self.kind == "regression":
            raise UserError("top applies to labels, but this model predicts a number")

    def expect(self, kind: Literal["labels", "regression"], path: Path) -> None:
        """Raise UserError if the model predicts numbers instead of labels, or the reverse."""
        if (kind == "regression") != (self.kind == "regression"):
            predicts = "labels: call classify" if kind == "regression" else "a number: call predict"
            raise UserError(f"{path}: this model predicts {predicts}")


def trained_target(loaded: Loaded, record: JsonMapping) -> Target:
    """Return the target of a model, with the threshold and the positive label in the record of its run."""
    config = loaded.model.config
    typed_labels(config.labels, loaded.label_type)
    positive, threshold = record.get("positive"), record.get("threshold", 0.5)
    if threshold == "validation" and run_status(loaded.path) == "unfinished":
        logger.warning(f"{loaded.path}: the run chooses the thresholds of its labels at its end; using 0.5")
    labels = distinct_names(config.labels)
    if isinstance(threshold, dict):
        threshold = {label: threshold.get(label) for label in labels}
    limits = threshold.values() if isinstance(threshold, dict) else [threshold]
    valid = all(isinstance(limit, int | float) and 0 <= limit <= 1 for limit in limits)
    return Target(
        config.target if isinstance(config, LabelConfig) else "classes", labels,
        threshold if valid else 0.5,
        positive if positive in config.labels and len(config.labels) == 2 else None, label_type=loaded.label_type,
    )  # fmt: skip


def build_target(config: TargetConfig, labels: tuple[str, ...], train: LabeledItems, smoothing: float = 0.0) -> Target:
    """Return the target of a training run. Balanced class weights follow from the training data.

    Raises UserError if a setting names a label that does not occur.
    """
    if config.positive is not None and (config.positive not in labels or len(labels) != 2):
        raise UserError(f"positive is {config.positive!r}: expected one of two labels, found {shown(labels, 8)}")
    calibrates = isinstance(config.threshold, str)
    threshold = 0.5 if isinstance(config.threshold, str) else config.threshold
    target = Target(
        config.target, labels, threshold, config.positive, None, smoothing, train.label_type, calibrates
    )  # fmt: skip
    if (given := config.class_weights) is None:
        return target
    if isinstance(given, dict):
        for name in (name for name in given if name not in labels):
            close = similar(name, labels)
            hint = f"did you mean {close}?" if close else f"the labels are {shown(labels, 8)}"
            raise UserError(f"class_weights.{name}: no label has this name; {hint}")
        return replace(target, weights=torch.tensor([float(given.get(label, 1)) for label in labels]))
    return replace(target, weights=label_metrics.balanced_weights(target.truth(train), len(labels)))
