"""Predictor of an encoder of texts: embeddings, similarities, reranking and attention maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.calls import checked_methods
from manyheads.data.readers.text_pairs import PairColumns, TextPairs
from manyheads.data.sources.corpora import TextPairSource
from manyheads.data.text.text_faults import ItemError
from manyheads.models.bert import Bert
from manyheads.tasks.evaluation import EvaluationResult, record_of, scored_data
from manyheads.tasks.predictor import TextPredictor
from manyheads.tasks.reranking import Reranker
from manyheads.tasks.similarity.metrics import IndexedPairs, retrieval, retrieval_metrics, score_metrics


@checked_methods
class Encoder(TextPredictor[Bert], Reranker):
    """BERT that computes embeddings, similarities and attention maps, as returned by `manyheads.load`.

    It has no task head, or a task head that compares several texts.
    """

    verbs: ClassVar = ("embed", "rerank", "attend", "evaluate")
    done: ClassVar = "embedded"

    def _vectors(self, texts: Sequence[str], truncate: bool) -> Tensor:
        """Return vectors of unit length, (N, D)."""
        vectors = self.embed(list(texts), truncate=truncate, as_array=True)
        return F.normalize(torch.from_numpy(vectors), dim=-1)

    def _relevance(self, queries: Sequence[str], documents: Sequence[str], truncate: bool) -> list[float]:
        texts = [*dict.fromkeys([*queries, *documents])]
        try:
            vectors = self._vectors(texts, truncate)
        except ItemError as error:  # Pairs are numbered, not distinct texts.
            text, name = texts[error.index], "document" if texts[error.index] in documents else "query"
            at = (documents if name == "document" else queries).index(text)
            raise ItemError(at, error.fault, f"{name} {at + 1}") from None
        index = {text: i for i, text in enumerate(texts)}
        first, second = (vectors[[index[text] for text in side]] for side in (queries, documents))
        similarities: list[float] = (first * second).sum(-1).tolist()
        return similarities

    def evaluate(self, data: object = None, *, truncate: bool = False) -> EvaluationResult:
        """Compare the similarities of pairs of texts with their scores, or rank all second texts for each text.

        `data` is a `TextPairs`, or any data that the method `outcome` reads. The metrics are `spearman` and `pearson`
        for pairs with scores, otherwise `mrr`, `recall_at_1` and `recall_at_10`.
        """
        if not isinstance(data, TextPairs):
            return self.outcome(data, truncate=truncate)
        pairs = IndexedPairs.of(data)
        vectors, rows = self._vectors(pairs.texts, truncate), pairs.rows
        inputs = [f"{a}\t{b}" for a, b in zip(data.texts, data.pairs, strict=True)] if data.scores else data.texts
        if data.scores:
            similarities = (vectors[rows[0]] * vectors[rows[1]]).sum(-1)
            quality = [-abs(float(a) - b) for a, b in zip(similarities, data.scores, strict=True)]
            outputs = [f"{float(similarity):.4f}" for similarity in similarities]
            references, metrics = list(map(str, data.scores)), score_metrics(similarities, data.scores)
            return EvaluationResult(inputs, outputs, references, quality, metrics, unit="negative absolute error")
        ranks, nearest, _ = retrieval(vectors, rows)
        metrics = retrieval_metrics(ranks, len(np.unique(rows[1:])))
        outputs = [pairs.texts[i] for i in nearest]
        return EvaluationResult(
            inputs, outputs, data.pairs, (1 / ranks.double()).tolist(), metrics, unit="reciprocal rank"
        )

    def outcome(
        self, data: object = None, *, skip_bad_lines: bool = False, truncate: bool = False,
        columns: PairColumns | None = None,
    ) -> EvaluationResult:  # fmt: skip
        """Evaluate the model on the test data of its training run, or on `data`.

        `data` is a table of pairs of texts, or a directory with a test file.

        truncate  true: cut texts that are longer than the model's limit; always true if long texts were cut in training
        columns   names of the columns in `data`; None: the names in the training data
        """
        items = scored_data(self.path, data, TextPairSource(), skip_bad_lines=skip_bad_lines, columns=columns)
        return self.evaluate(items, truncate=truncate or record_of(self.path).get("truncate", False))
