"""Reranking: order documents by their relevance to a query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from manyheads.calls import checked_methods
from manyheads.errors import UserError
from manyheads.tasks.inputs import Texts, rows_of


class Ranked(NamedTuple):
    """Document with its index in the given list, and its relevance to the query; a higher score is better."""

    index: int  # type: ignore[assignment]  # hides the method of tuple
    score: float
    document: str


@checked_methods
class Reranker(ABC):
    """Base class of the predictors that compute the relevance of documents to a query."""

    @abstractmethod
    def _relevance(self, queries: Sequence[str], documents: Sequence[str], truncate: bool) -> list[float]:
        """Return the relevance of each document to the query of the same index."""

    def relevance(self, queries: Texts, documents: Texts, *, truncate: bool = False) -> list[float]:
        """Return the relevance of each document to the query of the same index; a higher score is better.

        truncate  true: cut texts that are longer than the model's limit; false: raise UserError for such texts
        """
        (firsts, _), (seconds, _) = rows_of(queries, "query"), rows_of(documents, "document")
        if len(firsts) != len(seconds):
            raise UserError(f"found {len(firsts):,} queries but {len(seconds):,} documents: expected equal numbers")
        return self._relevance(firsts, seconds, truncate) if firsts else []

    def rerank(
        self, query: str, documents: Texts, *, top: int | None = None, truncate: bool = False
    ) -> list[Ranked]:  # fmt: skip
        """Return the documents in the order of their relevance to a query, the most relevant first.

        A classifier or regression model of pairs reads the query and a document together: the score is the probability
        of the last of two labels, or the predicted number. An encoder compares the vectors of both: the score is their
        cosine similarity. Documents with equal scores keep their order.

        top       maximum number of documents; None: all
        truncate  true: cut texts that are longer than the model's limit; false: raise UserError for such texts

            >>> best = encoder.rerank("a pet", ["the cat sat", "stocks fell"], top=1)
            >>> [(type(found.index), type(found.document)) for found in best]
            [(<class 'int'>, <class 'str'>)]
        """
        if top is not None and top < 1:
            raise UserError(f"top is {top}: expected 1 or more")
        if not query.strip():
            raise UserError("the query is blank: expected a text")
        rows, _ = rows_of(documents, "document")
        scores = self.relevance([query] * len(rows), rows, truncate=truncate)
        found = [Ranked(index, score, text) for index, (score, text) in enumerate(zip(scores, rows, strict=True))]
        return sorted(found, key=lambda ranked: -ranked.score)[:top]
