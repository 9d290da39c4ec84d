"""Predictor for texts or pairs of texts: their most probable labels, all their labels, or a number."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from manyheads import directory
from manyheads.analysis.readout import Names, Readout
from manyheads.calls import checked_methods
from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.labeled import Columns, Labeled
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError, shown
from manyheads.interop.labels import LabelValue
from manyheads.tasks.classification.objective import label_logits
from manyheads.tasks.encoding import Encoded, encode
from manyheads.tasks.evaluation import EvaluationResult, record_of, scored_data
from manyheads.tasks.explaining import ExplainsTexts
from manyheads.tasks.inputs import Texts, equal_rows, rows_of
from manyheads.tasks.patching import Patches
from manyheads.tasks.predictor import TextPredictor
from manyheads.tasks.reranking import Reranker
from manyheads.tasks.targets import SHOWN_LABELS, Label, Prediction, Shares, shares, trained_target

logger = logging.getLogger(__name__)


@checked_methods
class Classifier(TextPredictor[Model[Config]], Reranker, ExplainsTexts, Patches):
    """Text classifier with its tokenizer, as returned by `manyheads.load`."""

    verbs: ClassVar = ("classify", "embed", "rerank", "attend", "explain", "patch", "evaluate")
    done: ClassVar = "classified"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        pairs = record_of(loaded.path).get("data", {}).get("pairs")
        self.takes_pairs, self.needs_pairs = self.reads_pairs and pairs is not False, bool(pairs)
        self.target = trained_target(loaded, record_of(loaded.path))
        self.reports = self.target.reports
        self.threshold = self.target.threshold if self.target.kind == "multi-label" else None

    @property
    def labels(self) -> tuple[LabelValue, ...]:
        """The classes, in the type of the labels in the training data.

        >>> classifier.labels
        ('negative', 'positive')
        """
        return self.target.values

    @property
    def supported(self) -> tuple[str, ...]:
        return tuple(verb for verb in super().supported if verb != "rerank" or not self._rerank_fault)

    @property
    def _rerank_fault(self) -> str:
        """Reason why the model cannot rerank documents, or an empty text."""
        if not self.takes_pairs:
            return "this model reads single texts, and cannot compare a query with a document"
        count = len(self.target.labels)
        if self.target.kind == "multi-label" or count > 2:
            return f"expected a number or one of two labels for each pair of texts, but this model has {count} labels"
        return ""

    def _relevance(self, queries: Sequence[str], documents: Sequence[str], truncate: bool) -> list[float]:
        if fault := self._rerank_fault:
            raise UserError(f"{self.path}: {fault}")
        logits = self._logits(self._encode(queries, documents, truncate))  # (N, 1) or (N, 2)
        found = logits if self.target.kind == "regression" else logits.softmax(-1)
        scores: list[float] = found[:, -1].tolist()
        return scores

    @overload
    def classify(
        self, texts: str, pairs: str | None = None, *, top: int | None = None, threshold: float | None = None,
        truncate: bool = False,
    ) -> list[Label]: ...  # fmt: skip
    @overload
    def classify(
        self, texts: Texts, pairs: Texts | None = None, *, top: int | None = None,
        threshold: float | None = None, truncate: bool = False,
    ) -> list[list[Label]]: ...  # fmt: skip
    def classify(
        self, texts: str | Texts, pairs: str | Texts | None = None, *, top: int | None = None,
        threshold: float | None = None, truncate: bool = False,
    ) -> list[Label] | list[list[Label]]:  # fmt: skip
        """Return the labels of every text, most probable first. A blank text gets no labels.

        pairs      second text of each pair, for a model that reads pairs
        top        number of labels. None: one; for a model that predicts any number of labels, all over the threshold
        threshold  minimum probability of a label, for such a model; None: the threshold of the training run, or 0.5
        truncate   true: cut texts that are longer than the model's limit; false: raise UserError for such texts

            >>> (label,) = classifier.classify("a fine film")
            >>> label.label in classifier.labels
            True
            >>> [len(labels) for labels in classifier.classify(["the cat", "the dog"], top=2)]
            [2, 2]
        """
        self.target.expect("labels", self.path)
        return self.target.typed(*self._predict(texts, pairs, top, threshold, truncate))

    @overload
    def predict(self, texts: str, pairs: str | None = None, *, truncate: bool = False) -> float: ...
    @overload
    def predict(self, texts: Texts, pairs: Texts | None = None, *, truncate: bool = False) -> list[float]: ...
    def predict(
        self, texts: str | Texts, pairs: str | Texts | None = None, *, truncate: bool = False
    ) -> float | list[float]:
        """Return the number that a regression model predicts for every text; NaN for a blank text.

        The arguments are those of `classify`.
        """
        self.target.expect("regression", self.path)
        return self.target.numbers(*self._predict(texts, pairs, None, None, truncate))

    def predict_proba(
        self, texts: str | Texts, pairs: str | Texts | None = None, *, truncate: bool = False
    ) -> NDArray[np.float32]:
        """Return the probability of each of `labels` for every text, (N, L), or (L,) for a single text.

        A blank text has NaN. The arguments are those of `classify`.

            >>> classifier.predict_proba(["the cat", "the dog"]).shape
            (2, 2)
        """
        self.target.expect("labels", self.path)
        firsts, logits, single = self._read(texts, pairs, truncate)
        probabilities = self.target.probabilities(logits)
        probabilities[[not text.strip() for text in firsts]] = math.nan
        return probabilities[0] if single else probabilities

    def predictions(
        self, texts: str | Texts, pairs: str | Texts | None = None, top: int | None = None,
        threshold: float | None = None, *, truncate: bool = False,
    ) -> Prediction | list[Prediction]:  # fmt: skip
        """Return the labels of every text by name, most probable first, or its number, as `predict` does."""
        found, single = self._predict(texts, pairs, top, threshold, truncate)
        return found[0] if single else found

    def _prediction(self, text: str, pair: str | None, truncate: bool) -> Shares:
        top = None if self.target.kind == "regression" else min(SHOWN_LABELS, len(self.target.labels))
        return shares(self.predictions(text, pair, top, truncate=truncate))

    def readout(self, text: str, pair: str | None = None, *, truncate: bool = False) -> Readout:
        """Return the prediction of the label of a text, or of a pair of texts, for an analysis.

        >>> found = classifier.readout("the cat")
        >>> found.logits().shape, found.names.index("positive")
        (torch.Size([1, 2]), 1)
        """
        self._encode([text], None if pair is None else [pair], truncate)
        rows, side = self._model_inputs(self._tokenized(text, pair, truncate), truncate)
        title = text if pair is None else f"{text} | {pair}"
        names = Names.of_labels(self.target.labels)
        return self._readout(
            rows, side, title, position=None, names=names, select=lambda logits: logits, kind=self.target.kind
        )

    def _predict(
        self, texts: str | Texts, pairs: str | Texts | None, top: int | None, threshold: float | None, truncate: bool
    ) -> tuple[list[Prediction], bool]:
        """Return a prediction for every text, and True for a single text."""
        self.target.check(top, threshold)
        firsts, logits, single = self._read(texts, pairs, truncate)
        found = self.target.predictions(logits, top, threshold)
        blank: Prediction = math.nan if self.target.kind == "regression" else []
        return [answer if text.strip() else blank for text, answer in zip(firsts, found, strict=True)], single

    def _read(self, texts: str | Texts, pairs: str | Texts | None, truncate: bool) -> tuple[list[str], Tensor, bool]:
        """Return the texts, or the first texts of pairs, their logits (N, L), and True for a single text."""
        seconds: list[str] | None = None
        if pairs is None:
            firsts, single = rows_of(texts)
        else:
            firsts, seconds, single = equal_rows(texts, pairs, ("text", "second text"))
        for i, pair in enumerate(seconds or ()):
            if bool(pair.strip()) != bool(firsts[i].strip()):
                raise ItemError(i, "and its second text: only one of them is blank")
        return firsts, self._logits(self._encode(firsts, seconds, truncate)), single

    def evaluate(self, data: object = None, *, truncate: bool = False) -> EvaluationResult:
        """Predict the labels or numbers of a data set, and compare them with the true ones.

        `data` is a `Labeled`, or any data that the method `outcome` reads.
        """
        if not isinstance(data, Labeled):
            return self.outcome(data, truncate=truncate)
        truth = self.target.truth(data)
        logits = self._logits(self._encode(data.texts, data.second_texts, truncate, data.place))
        return self.target.evaluation(data.inputs, data, logits, self.target.measure(logits, truth))

    def outcome(
        self, data: object = None, *, skip_bad_lines: bool = False, truncate: bool = False,
        columns: Columns | None = None,
    ) -> EvaluationResult:  # fmt: skip
        """Evaluate the model on the test data of its training run, or on `data`.

        `data` is a table of texts and labels, or a directory with a test file.

        truncate  true: cut texts that are longer than the model's limit; always true if long texts were cut in training
        columns   names of the columns in `data` that hold texts and labels; None: the names in the training data

            >>> outcome = classifier.outcome("labeled.tsv")
            >>> sorted(outcome.metrics)
            ['accuracy', 'f1', 'macro_f1', 'mcc']
        """
        return self.evaluate(
            self._test_data(data, columns, skip_bad_lines),
            truncate=truncate or record_of(self.path).get("truncate", False),
        )

    def _logits(self, encoded: Encoded) -> Tensor:
        model = self.compiled
        return label_logits(model.module, encoded, model.compute)

    def _encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None, truncate: bool,
        where: Callable[[int], str] | None = None,
    ) -> Encoded:  # fmt: skip
        if pairs is not None and not self.takes_pairs:
            raise UserError(f"{self.path}: this model reads single texts, not pairs")
        if pairs is None and any(map(str.strip, texts)) and self.needs_pairs:
            raise UserError(f"{self.path}: this model reads pairs: give the second text too (--pair, or after a tab)")
        return encode(self.tokenizer, texts, pairs, self.model.max_positions, truncate=truncate, where=where)

    def _test_data(self, data: object, columns: Columns | None, skip_bad_lines: bool) -> Labeled:
        from manyheads.data.sources.corpora import LabeledSource

        labeled: Labeled = scored_data(
            self.path, data, LabeledSource(), skip_bad_lines=skip_bad_lines, labels=self.target.labels, columns=columns,
            target=self.target.kind,
        )  # fmt: skip
        if data is not None and labeled.numbered:
            pairs = shown(f"{number} for {name}" for number, name in sorted(labeled.numbered.items()))
            logger.warning(f"{labeled.file or 'data'}: using numeric labels as indices of label names: {pairs}")
        return labeled
