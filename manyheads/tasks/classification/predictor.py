"""Predictor for text classification: the most probable labels of texts or pairs of texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.labeled import Columns, Labeled
from manyheads.data.sources.corpora import LabeledSource
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.tasks.classification.task import Encoded, classification_metrics, encode, label_ids, log_probabilities
from manyheads.tasks.evaluation import LabelEvaluation, record_of, scored_data
from manyheads.tasks.predictor import TextPredictor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Label:
    """Predicted label with its probability."""

    label: str
    probability: float

    def __str__(self) -> str:
        return self.label


def top_labels(scores: Tensor, labels: Sequence[str], top: int) -> list[list[Label]]:
    """Return the `top` most probable labels of each text, best first.

    The argument holds the log-probabilities of all labels for all texts, (N texts, L labels).
    """
    best, indices = scores.exp().topk(min(top, len(labels)))
    return [
        [Label(labels[i], probability) for probability, i in zip(*row, strict=True)]
        for row in zip(best.tolist(), indices.tolist(), strict=True)
    ]


class Classifier(TextPredictor):
    """Text classifier with its tokenizer, as returned by `manyheads.load`."""

    verbs: ClassVar = ("classify", "embed", "attend", "evaluate")
    reads: ClassVar = "texts"
    done: ClassVar = "classified"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        self._trained_on: dict[str, Any] = record_of(loaded.path).get("data", {})

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes.

        >>> classifier.labels
        ('negative', 'positive')
        """
        return tuple(self.model.config.labels)

    @property
    def takes_pairs(self) -> bool:
        """Return True if the model can read two texts and was not trained on single texts."""
        return self.reads_pairs and self._trained_on.get("pairs", True)

    @property
    def needs_pairs(self) -> bool:
        """Return True if the model was trained on pairs of texts and cannot classify a single text."""
        return self._trained_on.get("pairs", False)

    @overload
    def classify(
        self, texts: str, pairs: str | None = None, *, top: int = 1, truncate: bool = False
    ) -> list[Label]: ...
    @overload
    def classify(
        self, texts: list[str], pairs: list[str] | None = None, *, top: int = 1, truncate: bool = False
    ) -> list[list[Label]]: ...
    def classify(
        self,
        texts: str | list[str],
        pairs: str | list[str] | None = None,
        *,
        top: int = 1,
        truncate: bool = False,
    ) -> list[Label] | list[list[Label]]:
        """Return the `top` most probable labels of every text, best first. A blank text gets no labels.

        pairs     second text of each pair, for a model that reads pairs
        truncate  true: cut texts that are longer than the model's limit; false: raise UserError for such texts

            >>> (label,) = classifier.classify("a fine film")
            >>> label.label in classifier.labels
            True
            >>> [len(labels) for labels in classifier.classify(["the cat", "the dog"], top=2)]
            [2, 2]
        """
        if isinstance(texts, str):
            if not (pairs is None or isinstance(pairs, str)):
                raise UserError(f"expected a string as the second text, found a {type(pairs).__name__}")
            return self.classify([texts], None if pairs is None else [pairs], top=top, truncate=truncate)[0]
        if top < 1:
            raise UserError(f"top is {top}: expected 1 or more")
        if isinstance(pairs, str):
            raise UserError("expected a list of strings as the second texts of several texts, found one string")
        if pairs is not None and len(texts) != len(pairs):
            raise UserError(f"found {len(texts):,} texts but {len(pairs):,} second texts: expected equal numbers")
        for text in (*texts, *(pairs or ())):
            if not isinstance(text, str):
                raise UserError(f"expected strings, found a {type(text).__name__}; give second texts as `pairs`")
        for i, pair in enumerate(pairs or ()):
            if bool(pair.strip()) != bool(texts[i].strip()):
                raise ItemError(i, "and its second text: only one of them is blank")
        model, compute = self.compiled
        scores = log_probabilities(model, self._encode(texts, pairs, truncate), compute)
        ranked = top_labels(scores, self.labels, top)
        return [labels if text.strip() else [] for text, labels in zip(texts, ranked, strict=True)]

    def evaluate(self, data: Labeled, *, truncate: bool = False) -> LabelEvaluation:
        """Classify the texts of a data set, and compare the predicted labels with the true labels."""
        truth = label_ids(data, self.labels)
        model, compute = self.compiled
        scores = log_probabilities(
            model, self._encode(data.texts, data.second_texts, truncate, data.place), compute
        )  # (N, L)
        metrics = classification_metrics(scores.argmax(1).tolist(), truth.tolist(), self.labels)
        return LabelEvaluation.of(data.inputs, data.labels, self.labels, scores, metrics)

    def outcome(
        self, data: str | None = None, *, skip_bad_lines: bool = False, truncate: bool = False,
        columns: Columns | None = None,
    ) -> LabelEvaluation:  # fmt: skip
        """Evaluate the model on the test data of its training run, or on `data`.

        `data` is a table of texts and labels, or a directory with a test file.

        truncate  true: cut texts that are longer than the model's limit; always true if long texts were cut in training
        columns   names of the columns in `data` that hold texts and labels; None: the names in the training data

            >>> outcome = classifier.outcome("labeled.tsv")
            >>> sorted(outcome.metrics)
            ['accuracy', 'f1']
        """
        if columns is not None and data is None:
            raise UserError("columns apply only to other test data: give the data, too, with --data")
        return self.evaluate(
            self._test_data(data, columns, skip_bad_lines),
            truncate=truncate or record_of(self.path).get("truncate", False),
        )

    def _encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None, truncate: bool,
        where: Callable[[int], str] | None = None,
    ) -> Encoded:  # fmt: skip
        if pairs is not None and not self.takes_pairs:
            raise UserError(f"{self.path}: this model reads single texts, not pairs")
        if pairs is None and any(map(str.strip, texts)) and self.needs_pairs:
            raise UserError(f"{self.path}: this model reads pairs: give the second text too (--pair, or after a tab)")
        return encode(self.tokenizer, texts, pairs, self.model.config.max_positions, truncate=truncate, where=where)

    def _test_data(self, data: str | None, columns: Columns | None, skip_bad_lines: bool) -> Labeled:
        settings: dict[str, Any] = {} if columns is None else {"columns": columns}
        labeled: Labeled = scored_data(
            self.path, data, LabeledSource(), skip_bad_lines=skip_bad_lines, labels=self.labels, **settings
        )
        if data is not None and labeled.numbered:
            pairs = ", ".join(f"{number} for {name}" for number, name in sorted(labeled.numbered.items())[:4])
            logger.info(f"{labeled.file}: using numeric labels as indices of label names: {pairs}")
        return labeled
