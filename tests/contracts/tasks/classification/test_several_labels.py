"""Runs with several labels per text: columns with a flag for each label, weights, thresholds, and reports by label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sklearn

import manyheads
from manyheads import cli
from manyheads.service.server import Settings, service_of
from manyheads.tasks.trained_run import TrainedRun
from tests.support.services import Ask, asked_of

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")
LABELS = ["red", "blue", "green"]  # not in alphabetical order
WORDS = [*LABELS, "moon", "sun"]
SETTINGS: dict[str, Any] = {
    "threads": 1, "vocabulary": 40, "batch_items": 10, "training.epochs": 8, "training.learning_rate": 0.02,
    "training.warmup": 5, "model.dropout": 0.0, "target": "multi-label", "threshold": "validation",
    "columns.text": "comment", "columns.label": LABELS, "class_weights": {"green": 3.0},
}  # fmt: skip


def table(count: int, start: int = 0) -> pd.DataFrame:
    texts = [f"{WORDS[i % 5]} {WORDS[(i * i + i // 5) % 5]} {i}" for i in range(start, start + count)]
    flags = {label: [int(label in text.split()) for text in texts] for label in LABELS}
    flags["green"] = [0] * 30 + flags["green"][30:]
    return pd.DataFrame({"id": range(count), "comment": texts, **flags})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    out = tmp_path_factory.mktemp("runs") / "several"
    frames = {"train": table(120), "validation": table(40, 120), "test": table(60, 160)}
    return manyheads.train("text-classification", SETTINGS, out=out, progress=False, **frames)


@pytest.fixture
def test_table(tmp_path: Path) -> str:
    table(60, 160).to_csv(tmp_path / "test.csv", index=False)
    return str(tmp_path / "test.csv")


def test_thresholds_are_those_of_the_validation_data(run: TrainedRun) -> None:
    model = run.predictor
    assert [*run["threshold"]] == LABELS == [*model.labels], "in the order of the columns"
    assert model.threshold == run["threshold"]
    assert run["overrides"]["threshold"] == "validation"
    validation = table(40, 120)
    scores, truth = model.predict_proba(validation.comment), validation[LABELS].to_numpy()
    for i, label in enumerate(LABELS):
        precision, recall, _ = sklearn.precision_recall_curve(truth[:, i], scores[:, i])
        best = (2 * precision * recall / np.maximum(precision + recall, 1e-9)).max()
        assert sklearn.f1_score(truth[:, i], scores[:, i] >= run["threshold"][label]) == pytest.approx(best)
    limits = np.array([*run["threshold"].values()])
    expected = sklearn.f1_score(truth, scores >= limits, average="macro")
    assert run.validation["macro_f1"] == pytest.approx(expected)


def test_reports_equal_those_of_scikit_learn(
    run: TrainedRun, test_table: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcome = run.predictor.outcome(test_table)
    truth, limits = table(60, 160)[LABELS].to_numpy(), np.array([*run["threshold"].values()])
    assert (outcome.truth == truth).all()
    assert (outcome.predicted == (outcome.scores >= limits)).all()
    labels, counts = outcome.confusion()
    assert [*labels] == LABELS
    assert (counts == sklearn.multilabel_confusion_matrix(truth, outcome.predicted)).all()
    for i, row in enumerate(outcome.by_label()):
        assert row["label"] == LABELS[i]
        expected = sklearn.average_precision_score(truth[:, i], outcome.scores[:, i])
        assert row["average_precision"] == pytest.approx(expected)
    command = ["evaluate", str(run.directory), "--data", test_table, "--confusion"]
    assert cli.main([*command, "-", "--by-label"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["label", "items", "precision", "recall", "f1", "average_precision"] in printed
    assert ["red", *map(str, counts[0].flatten().tolist())] in printed
    assert cli.main([*command, str(tmp_path / "c.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["confusion"] == {"labels": LABELS, "counts": counts.tolist()}
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_predictions_tables_and_the_service_use_the_thresholds(
    run: TrainedRun, test_table: str, tmp_path: Path
) -> None:
    model, limits = run.predictor, run["threshold"]
    texts = table(60, 160).comment
    expected = [
        {label for label, p in zip(LABELS, row, strict=True) if p >= limits[label]}
        for row in model.predict_proba(texts)
    ]
    assert [{label.label for label in labels} for labels in model.classify(texts)] == expected
    out = tmp_path / "out.csv"
    options = ["--input", test_table, "--output", str(out), "--scores"]
    assert cli.main(["classify", str(run.directory), *options]) == 0
    cells = pd.read_csv(out, keep_default_na=False).prediction
    assert [set(cell.split("|")) - {""} for cell in cells] == expected

    async def scene(ask: Ask) -> Any:
        return await ask(texts=texts.tolist())

    answer = asked_of(service_of(Settings({"m": str(run.directory)})), scene)
    assert [{label["label"] for label in labels} for labels in answer.json()["results"]] == expected


def test_a_stopped_run_says_that_it_has_no_thresholds_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "run"
    stopped = manyheads.train(
        "text-classification", {**SETTINGS, "training.log_every": 1}, train=table(120), out=out, progress=False,
        callbacks=[lambda entry: False],
    )  # fmt: skip
    assert stopped.predictor.threshold == 0.5
    assert "chooses the thresholds of its labels at its end; using 0.5" in caplog.text
    resumed = manyheads.train(resume=out, train=table(120), progress=False)
    assert manyheads.load(out).threshold == resumed["threshold"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns.label": ["red", "blu"]}, r"train: row 1: expected a column 'blu', found 'id', 'comment', 'red'"),
        ({"columns.label": ["red", "id"]}, r"train: row 3: expected 0 or 1 in 'id', found 2; write 0 or 1"),
        ({"target": "classes", "threshold": 0.5}, "columns.label has several columns: expected target=multi-label"),
        ({"threshold": "test"}, "threshold: expected a number from 0 to 1 or one of validation"),
        ({"class_weights": {"gren": 2}}, r"class_weights.gren: no label has this name; did you mean green\?"),
        ({"class_weights": {"green": -2}}, "each value a number from 0 to 1000000, but 'green' is -2"),
    ],
)
def test_wrong_columns_thresholds_and_weights_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        manyheads.train("text-classification", {**SETTINGS, **settings}, train=table(120), out=tmp_path / "run")
