"""Estimator of a recipe in scikit-learn: cross-validation, search, pipelines, weights and pickles."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from manyheads.errors import UserError
from manyheads.sklearn import RecipeClassifier

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")
LABELS = [-1, 3, 10]
WORDS = ["bad", "plain", "good"]
X = pd.Series([f"a {WORDS[i % 3]} film {i // 3}" for i in range(60)], index=range(100, 160))
Y = pd.Series([LABELS[i % 3] for i in range(60)], index=X.index)
SETTINGS: dict[str, Any] = {
    "steps": 12, "vocabulary": 40, "tokens": "words", "threads": 1, "warmup": 1, "learning_rate": 0.02,
}  # fmt: skip


def made(**more: Any) -> RecipeClassifier:
    return RecipeClassifier(**{**SETTINGS, **more})


@pytest.fixture(scope="module")
def fitted() -> RecipeClassifier:
    return made().fit(X, Y)


def test_labels_and_probabilities_have_the_order_and_the_type_of_the_data(fitted: RecipeClassifier) -> None:
    assert fitted.classes_.tolist() == LABELS
    assert fitted.predictor_.labels == ("-1", "3", "10")
    texts = ["a good film", "a bad film", "a plain film"]
    assert fitted.predict(texts).tolist() == [10, -1, 3]
    probabilities = fitted.predict_proba(np.array(texts))
    assert probabilities.argmax(1).tolist() == [2, 0, 1]
    assert probabilities.sum(1) == pytest.approx(1)
    assert fitted.score(X, Y) == accuracy_score(Y, fitted.predict(X)) > 0.9
    assert "accuracy" in fitted.run_.validation
    assert not fitted.run_.directory.exists()


def test_a_pickle_has_the_model(fitted: RecipeClassifier) -> None:
    assert (pickle.loads(pickle.dumps(fitted)).predict_proba(X) == fitted.predict_proba(X)).all()


def test_folds_settings_and_pipelines_are_those_of_scikit_learn(tmp_path: Path) -> None:
    copy = clone(made()).set_params(steps=3, **{"model.dropout": 0.0})
    assert copy.get_params() == {**made().get_params(), "steps": 3, "model.dropout": 0.0}
    assert made().get_params()["steps"] == 12
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = Pipeline([("lower", lower), ("classify", made())])
    assert cross_val_score(pipeline, X.str.upper(), Y, cv=2).min() > 0.6
    search = GridSearchCV(made(), {"learning_rate": [1e-6, 0.02]}, cv=2, refit=False)
    with pytest.raises(ValueError, match=r"contains a finished run"):
        GridSearchCV(made(out=tmp_path / "run"), {"steps": [1, 2]}, cv=2, error_score="raise").fit(X, Y)
    search.fit(X, Y)
    assert search.best_params_ == {"learning_rate": 0.02}


def test_weights_of_texts_decide_a_contradiction() -> None:
    texts, labels = [f"film {i // 2}" for i in range(60)], ["yes", "no"] * 30  # Each text has both labels.
    for favored in ("yes", "no"):
        weights = [5.0 if label == favored else 0.1 for label in labels]
        found = made().fit(texts, labels, sample_weight=weights)
        assert set(found.predict(texts)) == {favored}


def test_pairs_are_two_columns() -> None:
    frame = pd.DataFrame({"one": X, "other": X})
    with pytest.raises(ValueError, match="pairs of texts require a pretrained model: add --init MODEL"):
        made().fit(frame, Y)
    assert made(steps=1).fit(X.to_frame(), Y).predict(X.to_frame()).shape == (60,)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: made(step=3).fit(X, Y), r"step: unknown setting; did you mean training\.steps"),
        (lambda: made().fit(X, ["a"] * 60), "y has only the label a: expected at least two"),
        (lambda: made().fit(X, np.linspace(0, 1, 60)), "Unknown label type: continuous"),
        (lambda: made().fit(X, np.eye(60, 2)), "y should be a 1d array"),
        (lambda: made().fit(np.full((60, 3), "a"), Y), "expected texts, or pairs of texts, found 3 columns"),
        (lambda: made().fit(X, Y, sample_weight=-np.ones(60)), "expected a weight of 0 or more in 'weight', found -1"),
        (lambda: made().fit(X, Y, sample_weight=np.zeros(60)), "the weights of all training items are 0"),
        (lambda: made().fit([*X[:59], None], Y), "row 60: expected text in 'text', found None"),
        (lambda: made().fit([], []), "y has no label: expected at least two"),
        (
            lambda: made().fit(X, np.array([None, "a"] * 30)),
            "y has values of NoneType, str: expected labels of one type",
        ),
        (lambda: made().fit(X, np.array([None] * 60)), "y has values of NoneType: expected labels of one type"),
        (lambda: made().fit("a text", Y), "expected a sequence of texts, such as a list, found one str"),
        (lambda: made(target="multi-label").fit(X, Y), "target=multi-label: expected classes"),
        (lambda: made(target="regression").fit(X, Y), "target=regression: expected classes"),
        (lambda: RecipeClassifier("translation").fit(X, Y), "translation does not classify texts"),
        (lambda: RecipeClassifier("tagging").fit(X, Y), "tagging does not classify texts"),
        (lambda: RecipeClassifier("image-classification").fit(X, Y), "image-classification does not classify texts"),
    ],
)
def test_wrong_input_is_refused(use: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()


def test_a_target_in_a_file_of_settings_does_not_apply(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("target: multi-label\n")
    found = made(steps=1, config=tmp_path / "a.yaml").fit(X, Y)
    assert found.predict_proba(X).sum(1) == pytest.approx(1)


def test_a_list_may_be_empty_and_one_text_is_no_list(fitted: RecipeClassifier) -> None:
    assert (fitted.predict([]).shape, fitted.predict_proba([]).shape) == ((0,), (0, 3))
    with pytest.raises(UserError, match="expected a sequence of texts, such as a list, found one str"):
        fitted.predict("a film")


def test_a_refused_fit_keeps_the_model(fitted: RecipeClassifier) -> None:
    with pytest.raises(UserError):
        fitted.fit([], [])
    assert fitted.predict(["a good film"]).tolist() == [10]


def test_a_blank_text_and_an_estimator_without_a_model_are_refused(fitted: RecipeClassifier) -> None:
    with pytest.raises(ValueError, match="text 2 is blank"):
        fitted.predict(["a film", " "])
    with pytest.raises(NotFittedError):
        made().predict(["a film"])
