"""Metrics of predicted labels and numbers, and the weights of rare classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from manyheads.errors import UserError
from manyheads.training.record import Metrics


def balanced_weights(truth: Tensor, classes: int) -> Tensor:
    """Return the weights with which rare classes count as much as frequent ones, (L,).

    truth  (N,) class indices. The weight of a class is the mean number of items of a class, divided by the number of
           its items, so that the mean weight of an item is 1; it is 0 for a class without items (King and Zeng 2001).
           Or (N, L) 1 for each label of an item, otherwise 0. The weight of a label is the ratio of the items without
           and with the label; it is 1 for a label that all items or no items have
    """
    if truth.ndim == 2:
        positives = truth.sum(0)
        ratios = (len(truth) - positives) / positives.clamp(min=1)
        return torch.where((positives > 0) & (ratios > 0), ratios, 1.0)
    counts = torch.bincount(truth, minlength=classes)
    return torch.where(counts > 0, len(truth) / ((counts > 0).sum() * counts.clamp(min=1)), 0.0)


def classification_metrics(
    predicted: Sequence[int], truth: Sequence[int], labels: Sequence[str], positive: str | None = None
) -> Metrics:
    """Return accuracy, macro F1 and Matthews' correlation coefficient of predicted labels; with two labels, also F1.

    F1 is the score of the label `positive`; by default, of the second label, as GLUE does for MRPC. Macro F1 is the
    mean over all labels that occur.

    predicted, truth  class indices of the items
    """
    predictions, targets = np.array(predicted), np.array(truth)
    if not len(targets):
        raise UserError("found no test items to score: the test data are empty")
    right = predictions == targets
    found, expected, hits = (
        np.bincount(indices, minlength=len(labels)) for indices in (predictions, targets, targets[right])
    )
    occurs = found + expected > 0
    f1 = 2 * hits / np.maximum(found + expected, 1)  # (L,)
    index = -1 if positive is None else labels.index(positive)
    binary: Metrics = {"f1": {"value": float(f1[index]), "signature": f"of the label {labels[index]!r}"}}
    counted = f"{len(labels)} labels, {len(targets):,} items"
    return {
        "accuracy": {"value": float(right.mean()), "signature": counted},
        **(binary if len(labels) == 2 else {}),
        "macro_f1": {"value": float(np.mean(f1[occurs])), "signature": "unweighted mean over the labels"},
        "mcc": {
            "value": _mcc(hits, found, expected),
            "signature": "Matthews' correlation coefficient",
        },
    }


def _mcc(hits: NDArray[np.int64], found: NDArray[np.int64], expected: NDArray[np.int64]) -> float:
    """Return Matthews' correlation coefficient of any number of classes (Gorodkin 2004), 0 if it is undefined."""
    f, e = found.astype(float), expected.astype(float)  # The products may exceed 64-bit integers.
    items = e.sum()
    variances = (items**2 - f @ f) * (items**2 - e @ e)
    return float((hits.sum() * items - f @ e) / np.sqrt(variances)) if variances > 0 else 0.0


def regression_metrics(predicted: Sequence[float], truth: Sequence[float]) -> Metrics:
    """Return mean squared error, mean absolute error, and Pearson and Spearman correlation of predicted numbers.

    A correlation is 0 if all predictions or all true numbers are equal.
    """
    predictions, targets = np.array(predicted), np.array(truth)
    measured = {
        "mse": float(np.mean((predictions - targets) ** 2)),
        "mae": float(np.mean(np.abs(predictions - targets))),
        "pearson": _correlation(predictions, targets),
        "spearman": _correlation(_ranks(predictions), _ranks(targets)),
    }
    return {name: {"value": value, "signature": f"{len(targets):,} items"} for name, value in measured.items()}


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return 0.0 if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])


def _ranks(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each number. Equal numbers share their mean rank."""
    _, index, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[index]
    return ranks


def multi_label_metrics(
    probabilities: NDArray[np.float32] | NDArray[np.float64],
    truth: NDArray[np.bool_],
    threshold: float | Mapping[str, float],
) -> Metrics:
    """Return micro F1, macro F1 and mean average precision of the predictions of a multi-label model.

    probabilities  (N, L) probability of each label
    truth          (N, L) True for each label of an item
    threshold      minimum probability of a predicted label: one number, or a number for each label, in class order
    """
    found = probabilities >= np.array([*threshold.values()] if isinstance(threshold, Mapping) else threshold)
    hits, both = (found & truth).sum(0), found.sum(0) + truth.sum(0)  # (L,)
    at = "a threshold for each label" if isinstance(threshold, Mapping) else f"threshold {threshold:g}"
    at = f"{at}, {truth.shape[1]} labels, {len(truth):,} items"
    occurring = np.flatnonzero(truth.any(0))
    precisions = [average_precision(probabilities[:, i], truth[:, i]) for i in occurring]
    return {
        "micro_f1": {"value": float(2 * hits.sum() / max(both.sum(), 1)), "signature": at},
        "macro_f1": {"value": float(np.mean(2 * hits / np.maximum(both, 1))), "signature": at},
        "map": {
            "value": float(np.mean(precisions)) if precisions else 0.0,
            "signature": f"mean average precision of the {len(occurring)} labels that occur",
        },
    }


def average_precision(scores: ArrayLike, truth: NDArray[np.bool_]) -> float:
    """Return the area under the curve of precision over recall, as a sum of steps. Equal scores form one step."""
    _, found, hits = _curve(scores, truth)
    return float(np.sum(np.diff(hits, prepend=0) * hits / found) / max(truth.sum(), 1))


def best_threshold(scores: ArrayLike, truth: NDArray[np.bool_]) -> float:
    """Return the minimum score with which the predictions of a label have the best F1.

    It is the middle between two neighboring scores, so that rounding has no effect. Of several best ones it is the
    lowest, as with `numpy.argmax` on scikit-learn's `precision_recall_curve`. It is 0.5 if no item has the label.

    scores  (N,) probability of the label for each item
    truth   (N,) True for the items with the label
    """
    if not truth.any():
        return 0.5
    distinct, found, hits = _curve(scores, truth)
    f1 = hits / (found + truth.sum())
    best = len(f1) - 1 - int(np.argmax(f1[::-1]))
    return float(distinct[best] + [*distinct, 0.0][best + 1]) / 2


def _curve(
    scores: ArrayLike, truth: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct scores, highest first, with the numbers of items and of true items at or above each score."""
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    last = np.flatnonzero(np.append(np.diff(values[order]), 1))  # last item of each group of equal scores
    return values[order][last], last + 1, np.cumsum(truth[order], dtype=np.int64)[last]
