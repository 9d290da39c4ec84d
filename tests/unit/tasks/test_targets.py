"""Metrics, losses and reports of classes, numbers and several labels, compared with SciPy, scikit-learn and seqeval."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics as sklearn
from sklearn.utils.class_weight import compute_class_weight
from transformers.loss.loss_utils import nn

from manyheads.data.readers.labeled import Labeled
from manyheads.runs.recipe import TargetConfig
from manyheads.tasks.evaluation import values
from manyheads.tasks.label_evaluation import LabelEvaluation
from manyheads.tasks.label_metrics import (
    average_precision,
    balanced_weights,
    best_threshold,
    classification_metrics,
    multi_label_metrics,
    regression_metrics,
)
from manyheads.tasks.tagging.metrics import count_entities
from manyheads.tasks.tagging.predictor import EntityEvaluation
from manyheads.tasks.targets import Label, Target, build_target

NAMES = ("a", "b", "c")


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_scores_of_classes_equal_scikit_learn(classes: int) -> None:
    random = np.random.default_rng(classes)
    truth, found = random.integers(classes, size=60), random.integers(max(2, classes - 1), size=60)
    measured = values(classification_metrics(found.tolist(), truth.tolist(), [str(i) for i in range(classes)]))
    assert measured["macro_f1"] == pytest.approx(sklearn.f1_score(truth, found, average="macro"), abs=1e-12)
    assert measured["mcc"] == pytest.approx(sklearn.matthews_corrcoef(truth, found), abs=1e-12)
    assert values(classification_metrics([1, 1], [1, 1], NAMES))["mcc"] == 0.0  # undefined with a single class


def test_the_positive_label_of_f1_can_be_chosen() -> None:
    truth, found = [0, 0, 0, 1], [0, 1, 0, 1]
    for label, positive in ((0, "no"), (1, "yes"), (1, None)):
        measured = classification_metrics(found, truth, ("no", "yes"), positive)
        assert measured["f1"]["value"] == pytest.approx(sklearn.f1_score(truth, found, pos_label=label))
        assert repr(positive or "yes") in measured["f1"]["signature"]


def test_scores_of_numbers_equal_scipy() -> None:
    random = np.random.default_rng(1)
    truth, found = random.integers(5, size=80) / 2, random.integers(9, size=80) / 4  # with ties
    measured = values(regression_metrics(found.tolist(), truth.tolist()))
    assert measured["pearson"] == pytest.approx(pearsonr(found, truth).statistic)
    assert measured["spearman"] == pytest.approx(spearmanr(found, truth).statistic)
    assert measured["mse"] == pytest.approx(sklearn.mean_squared_error(truth, found))
    assert measured["mae"] == pytest.approx(sklearn.mean_absolute_error(truth, found))
    assert values(regression_metrics([1.0, 1.0], [1.0, 2.0]))["pearson"] == 0.0


def test_scores_of_several_labels_equal_scikit_learn() -> None:
    random = np.random.default_rng(2)
    truth, probabilities = random.random((50, 6)) < 0.3, np.round(random.random((50, 6)), 1)  # with ties
    truth[:, 5] = False
    measured = values(multi_label_metrics(probabilities, truth, 0.4))
    for average in ("micro", "macro"):
        expected = sklearn.f1_score(truth, probabilities >= 0.4, average=average, zero_division=0)
        assert measured[f"{average}_f1"] == pytest.approx(expected)
    expected = [sklearn.average_precision_score(truth[:, i], probabilities[:, i]) for i in range(5)]
    assert measured["map"] == pytest.approx(np.mean(expected))
    assert average_precision(probabilities[:, 0], truth[:, 0]) == pytest.approx(expected[0])


def test_class_weights_equal_scikit_learn() -> None:
    truth = torch.tensor([0] * 6 + [1] * 3 + [3])
    weights = balanced_weights(truth, 4)
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=truth.numpy())
    assert weights[[0, 1, 3]].numpy() == pytest.approx(expected)
    assert weights[2] == 0
    assert weights[truth].mean() == pytest.approx(1.0)


def test_losses_equal_those_of_transformers() -> None:
    """transformers takes the mean over items (and labels) of MSELoss and BCEWithLogitsLoss."""
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    several, numbers = torch.tensor([[1.0, 0, 1]] * 4), torch.tensor([0.0, 1, 2, 3])
    mean = Target("multi-label", NAMES).loss(logits, several) / 4
    torch.testing.assert_close(mean, nn.BCEWithLogitsLoss()(logits, several))
    mean = Target("regression", ("x",)).loss(logits[:, :1], numbers) / 4
    torch.testing.assert_close(mean, nn.MSELoss()(logits[:, 0], numbers))
    weights = torch.tensor([0.5, 1.0, 2.0])
    total = Target("classes", NAMES, weights=weights).loss(logits, torch.tensor([0, 1, 2, 2]))
    expected = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 2]), weights, reduction="sum")
    torch.testing.assert_close(total, expected)


def test_weights_of_several_labels_are_those_of_torch() -> None:
    random = torch.Generator().manual_seed(2)
    logits, truth = torch.randn(8, 3, generator=random), (torch.rand(8, 3, generator=random) < 0.3).float()
    truth[:, 0], truth[:, 2] = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 1]), 0.0
    weights = balanced_weights(truth, 3)
    assert weights.tolist() == [3.0, float((8 - truth[:, 1].sum()) / truth[:, 1].sum()), 1.0]
    assert balanced_weights(torch.ones(2, 1), 1).tolist() == [1.0]
    loss = Target("multi-label", NAMES, weights=weights).loss(logits, truth) / 8
    torch.testing.assert_close(loss, nn.BCEWithLogitsLoss(pos_weight=weights)(logits, truth))
    data = Labeled(["x"] * 4, ["a|b", "", "a", "c"], target="multi-label")
    built = build_target(TargetConfig(target="multi-label", class_weights="balanced"), NAMES, data)
    assert built.weights is not None
    assert built.weights.tolist() == [1.0, 3.0, 3.0]


@pytest.mark.parametrize("target", [
    Target("classes", NAMES, smoothing=0.1), Target("classes", NAMES, weights=torch.tensor([1.0, 2, 3]), smoothing=0.1),
    Target("multi-label", NAMES), Target("regression", ("x",)),
])  # fmt: skip
def test_the_weight_of_an_item_is_the_number_of_its_copies(target: Target) -> None:
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(3, len(target.labels), generator=random)
    truth = {"classes": torch.tensor([0, 1, 2]), "regression": torch.tensor([0.0, 1.0, 2.0])}.get(
        target.kind, torch.eye(3)
    )
    copies = [0, 0, 2]
    weighted = target.loss(logits, truth, torch.tensor([2.0, 0.0, 1.0]))
    torch.testing.assert_close(weighted, target.loss(logits[copies], truth[copies]))


@pytest.mark.parametrize("kind", ["classes", "multi-label"])
def test_class_weights_are_numbers_of_labels(kind: Any) -> None:
    data = Labeled(["one", "two", "three"], [*NAMES], target=kind)
    target = build_target(TargetConfig(target=kind, class_weights={"a": 2.5, "c": 0}), NAMES, data)
    assert target.weights is not None
    assert target.weights.tolist() == [2.5, 1.0, 0.0]
    for name, hint in (("aa", r"did you mean a\?"), ("x", "the labels are a, b, c")):
        with pytest.raises(ValueError, match=f"class_weights.{name}: no label has this name; {hint}"):
            build_target(TargetConfig(target=kind, class_weights={"a": 1, name: 2}), NAMES, data)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_class_weight_multiplies_the_smoothed_loss(mixed: bool) -> None:
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 3, generator=random, dtype=torch.float64)
    weights = torch.tensor([0.5, 1.0, 8.0])
    shares = (
        torch.rand(5, 3, generator=random, dtype=torch.float64).softmax(-1) if mixed else torch.eye(3)[[0, 1, 2, 2, 0]]
    )
    expected = 0.0
    for item, row in zip(logits.log_softmax(-1).tolist(), shares.tolist(), strict=True):
        for label, share in enumerate(row):
            smoothed = [0.1 / 3 + 0.9 * (i == label) for i in range(3)]
            expected -= share * float(weights[label]) * sum(p * q for p, q in zip(smoothed, item, strict=True))
    truth = shares if mixed else shares.argmax(-1)
    assert float(Target("classes", NAMES, weights=weights, smoothing=0.1).loss(logits, truth)) == pytest.approx(
        expected
    )


def test_class_weights_learn_as_well_with_label_smoothing() -> None:
    truth = torch.tensor([0] * 392 + [1] * 8)
    inputs = torch.eye(2)[truth]
    target = Target("classes", ("common", "rare"), weights=balanced_weights(truth, 2), smoothing=0.1)
    matrix = torch.zeros(2, 2, requires_grad=True)
    for _ in range(60):
        (gradient,) = torch.autograd.grad(target.loss(inputs @ matrix, truth) / len(truth), matrix)
        matrix = (matrix - gradient).detach().requires_grad_()
    assert (inputs @ matrix).argmax(-1).tolist() == truth.tolist()


def predicted(target: Target, logits: torch.Tensor, **options: Any) -> list[list[Label]]:
    return [labels for labels in target.predictions(logits, **options) if isinstance(labels, list)]


def test_labels_over_the_threshold_are_predicted() -> None:
    target = Target("multi-label", NAMES, threshold=0.6)
    logits = torch.tensor([[2.0, 0.0, 1.0], [-1.0, -1.0, -1.0]])
    assert [list(map(str, labels)) for labels in predicted(target, logits)] == [["a", "c"], []]
    assert [len(labels) for labels in predicted(target, logits, threshold=0.2)] == [3, 3]
    assert [len(labels) for labels in predicted(target, logits, top=2)] == [2, 2]
    for options, message in (({"threshold": 1.5}, "threshold is 1.5: expected 0 to 1"), ({"top": 0}, "top is 0")):
        with pytest.raises(ValueError, match=message):
            target.predictions(logits, **options)
    with pytest.raises(ValueError, match="top applies to labels, but this model predicts a number"):
        Target("regression", ("x",)).predictions(logits[:, :1], top=2)


def test_a_threshold_has_the_best_f1_of_the_curve_of_scikit_learn() -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        truth, scores = random.random(30) < 0.4, np.round(random.random(30), 1).astype(np.float32)  # with ties
        precision, recall, thresholds = sklearn.precision_recall_curve(truth, scores)
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
        found = best_threshold(scores, truth)
        assert sklearn.f1_score(truth, scores >= found) == pytest.approx(f1.max())
        assert ((scores >= found) == (scores >= thresholds[np.round(f1[:-1], 12).argmax()])).all()
    assert best_threshold([0.2, 0.7], np.array([False, False])) == 0.5
    assert best_threshold([0.2, 0.4, 0.8], np.array([False, True, True])) == pytest.approx(0.3)
    assert best_threshold([0.2], np.array([True])) == pytest.approx(0.1)


def test_thresholds_by_label_decide_predictions_and_scores() -> None:
    data = Labeled(["one", "two", "three", "four"], ["a|b", "b", "a", "c"], target="multi-label")
    logits = torch.tensor([[1.0, -2.0, -3.0], [0.0, -1.0, -4.0], [2.0, -3.0, -3.0], [-1.0, -4.0, -2.0]])
    config = TargetConfig(target="multi-label", threshold="validation")
    target = build_target(config, NAMES, data)
    truth = target.truth(data)
    scores = values(target.measure(logits, truth))
    assert (scores["micro_f1"], scores["macro_f1"]) == (1.0, 1.0), "a validation chooses its thresholds"
    target = target.calibrated(target.probabilities(logits), truth.numpy() > 0)
    assert [*target.limits()] == [*NAMES]
    assert target.limits()["b"] == pytest.approx(torch.tensor([-2.0, -3.0]).sigmoid().mean())
    assert "a threshold for each label" in target.measure(logits, truth)["micro_f1"]["signature"]
    assert [sorted(map(str, labels)) for labels in predicted(target, logits)] == [["a", "b"], ["b"], ["a"], ["c"]]
    assert [len(labels) for labels in predicted(target, logits, threshold=0.5)] == [1, 1, 1, 0]
    result = target.evaluation(data.texts, data, logits, {})
    assert isinstance(result, LabelEvaluation)
    assert (result.outputs, result.errors(), set(result.quality)) == (result.references, [], {1.0})
    assert (result.truth == result.predicted).all()


def test_arrays_of_a_result_are_those_of_scikit_learn() -> None:
    data = Labeled(["one", "two", "three"], ["a", "c", "b"])
    logits = torch.tensor([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 5.0]])
    result = Target("classes", NAMES).evaluation(data.texts, data, logits, {})
    assert isinstance(result, LabelEvaluation)
    assert result.scores == pytest.approx(logits.softmax(-1).numpy())
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 2, 1]))
    assert sklearn.log_loss(result.truth, result.scores) == pytest.approx(float(loss), abs=1e-6)
    assert result.predicted.argmax(1).tolist() == [0, 1, 2]


def test_reports_of_labels_name_errors_confident_ones_first(tmp_path: Path) -> None:
    data = Labeled(["one", "two", "three"], ["a", "a", "b"])
    logits = torch.tensor([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 5.0]])
    result = Target("classes", NAMES).evaluation(data.texts, data, logits, {})
    assert isinstance(result, LabelEvaluation)
    labels, counts = result.confusion()
    assert labels == NAMES
    assert counts.tolist() == sklearn.confusion_matrix(result.references, result.outputs).tolist()
    result.save_errors(tmp_path / "errors.CSV")
    rows = list(csv.reader((tmp_path / "errors.CSV").open()))
    assert rows[0] == ["input", "truth", "prediction", "probability", "truth_probability"]
    assert [row[:3] for row in rows[1:]] == [["three", "b", "c"], ["two", "a", "b"]]


def test_reports_of_several_labels_and_numbers() -> None:
    data = Labeled(["one", "two"], ["a|b", ""], target="multi-label")
    logits = torch.tensor([[3.0, -3.0, -3.0], [-3.0, -3.0, 3.0]])
    result = Target("multi-label", NAMES).evaluation(data.texts, data, logits, {})
    assert isinstance(result, LabelEvaluation)
    assert [row[2:5] for row in result.errors()] == [("", "c", "c 0.9526"), ("a|b", "a", "b 0.0474")]
    assert [(row["label"], row["items"], row["f1"]) for row in result.by_label()] == [
        ("a", 1, 1),
        ("b", 1, 0),
        ("c", 0, 0),
    ]
    labels, counts = result.confusion()
    assert labels == NAMES
    assert counts.tolist() == sklearn.multilabel_confusion_matrix(result.truth, result.predicted).tolist()
    assert [row["average_precision"] for row in result.by_label()] == [
        pytest.approx(sklearn.average_precision_score(result.truth[:, i], result.scores[:, i])) for i in range(3)
    ]
    numbers = Labeled(["one", "two"], ["1.0", "2.5"], target="regression")
    errors = Target("regression", ("x",)).evaluation(numbers.texts, numbers, torch.tensor([[1.5], [4.5]]), {}).errors()
    assert errors == [(1, "two", "2.5", "4.5000", 2.0), (0, "one", "1.0", "1.5000", 0.5)]


def test_a_sheet_shows_the_wrong_images(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = LabelEvaluation(
        ["x", "y"], ["a", "b"], ["a", "a"], [1.0, 0.0], {}, [0.9, 0.2], ("a", "b"), np.empty((0, 2), np.float32),
        confidences=[0.9, 0.8], image=lambda index: Image.new("L", (8, 8), 255 * (1 - index)),
    )  # fmt: skip
    result.save_errors(tmp_path / "errors.png")
    assert np.asarray(Image.open(tmp_path / "errors.png").convert("L")).min() == 0, "the wrong image is black"


def test_the_report_on_entities_equals_seqeval() -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="needs seqeval: pip install seqeval")
    truth = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O", "B-LOC", "O"], ["O", "B-PER", "O", "O"]]
    found = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O", "B-LOC", "I-LOC"], ["O", "B-PER", "B-LOC", "O"]]
    rows = EntityEvaluation([], [], [], [], {}, count_entities(found, truth)).by_label()
    expected = seqeval.classification_report(truth, found, output_dict=True, zero_division=0)
    assert [row["label"] for row in rows] == list(expected)
    for row in rows:
        theirs = expected[row["label"]]
        assert row["items"] == theirs["support"]
        for ours, name in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
            assert row[ours] == pytest.approx(theirs[name], abs=1e-12), row["label"]
