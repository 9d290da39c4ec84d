"""Estimator for scikit-learn: a classifier of texts for `cross_val_score`, `GridSearchCV` and `Pipeline`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyheads.errors import UserError, extra, shown
from manyheads.tasks.classification.recipes import ClassificationConfig
from manyheads.tasks.registry import find
from manyheads.tasks.train import train

with extra("sklearn", "manyheads.sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d


class RecipeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type hints.
    """Classifier of texts, or of pairs of texts, that trains a recipe.

    recipe    name of a recipe that classifies texts, such as "single-sentence"
    settings  further arguments of `manyheads.train`, such as `epochs=3`, `init="MODEL"` or `out="runs/mine"`

    X is a sequence of N texts, or has two columns for pairs. y has a label for each text. After `fit`, `classes_` are
    the labels in sorted order, `run_` is the run, and `predictor_` is its model, as `manyheads.load` returns it.
    Without `out`, the directory of the run is deleted after `fit`.

        >>> from manyheads.sklearn import RecipeClassifier
        >>> texts, labels = ["a fine film", "a dull film", "fine music", "dull music"] * 5, ["good", "bad"] * 10
        >>> classifier = RecipeClassifier(steps=5, vocabulary=60, threads=1).fit(texts, labels)
        >>> classifier.classes_.tolist(), classifier.predict_proba(["a fine song"]).shape
        (['bad', 'good'], (1, 2))
    """

    def __init__(self, recipe: str = "text-classification", **settings: object) -> None:
        self.recipe, self.settings = recipe, settings

    def get_params(self, deep: bool = True) -> dict[str, object]:
        return {"recipe": self.recipe, **self.settings}

    def set_params(self, **params: Any) -> Self:
        """Replace settings. `fit` checks their names."""
        self.recipe = params.pop("recipe", self.recipe)
        self.settings |= params
        return self

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the recipe from the beginning.

        sample_weight  factor of the loss of each text, (N,), relative to their mean. By default, all factors are 1

        Raises UserError for a recipe or target other than one label per text, and for labels that cannot be sorted.
        """
        if not isinstance(find(self.recipe).config, ClassificationConfig):
            raise UserError(f"{self.recipe} does not classify texts: expected a recipe such as text-classification")
        if self.settings.get("target", "classes") != "classes":
            raise UserError(
                f"target={self.settings['target']}: expected classes, because y has one label for each text"
            )
        labels = column_or_1d(y, warn=True)
        try:
            classes, indices = np.unique(labels, return_inverse=True)
        except TypeError:
            kinds = sorted({type(label).__name__ for label in labels.tolist()})
            raise UserError(f"y has values of {shown(kinds)}: expected labels of one type, none missing") from None
        check_classification_targets(labels)
        names = [*map(str, classes.tolist())]
        if len(names) < 2:
            raise UserError(
                f"y has {f'only the label {names[0]}' if names else 'no label'}: expected at least two labels"
            )
        data = {**_columns(X), "label": indices}
        options: dict[str, Any] = {"progress": False, **self.settings}
        if sample_weight is not None:
            data["weight"], options["columns.weight"] = np.asarray(sample_weight), "weight"
        with TemporaryDirectory() as folder:
            own = {"names": names, "target": "classes"}  # The file `config` may have another target.
            self.run_ = train(self.recipe, own, train=data, **{"out": Path(folder, "run"), **options})
            self.classes_, self.predictor_ = classes, self.run_.predictor  # loaded before its directory is deleted
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the probability of each of `classes_` for every text, (N, L)."""
        check_is_fitted(self)
        truncate = bool(self.run_.get("truncate"))
        found: NDArray[np.float32] = self.predictor_.predict_proba(*_columns(X).values(), truncate=truncate)
        if np.isnan(found).any():
            raise UserError(f"text {np.isnan(found).any(1).argmax() + 1:,} is blank: expected a text to classify")
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label of every text, (N,)."""
        best = self.predict_proba(X).argmax(1)
        predicted: NDArray[Any] = self.classes_[best]
        return predicted


def _columns(X: ArrayLike) -> dict[str, Any]:
    """Return the texts, or the first and second texts of pairs, as lists by the names of their columns."""
    table = np.asarray(X, dtype=object)
    if not table.ndim:
        raise UserError(f"expected a sequence of texts, such as a list, found one {type(X).__name__}")
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim > 2 or table.shape[1] not in (1, 2):
        raise UserError(f"expected texts, or pairs of texts, found {' x '.join(map(str, table.shape[1:]))} columns")
    return dict(zip(("text", "text_pair"), table.T.tolist(), strict=False))
