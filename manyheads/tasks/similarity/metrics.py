"""Metrics of embeddings: retrieval of the pair of each text, and correlation of similarities with scores.

Vectors have unit length, so their dot product is their cosine similarity.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads.data.readers.text_pairs import TextPairs
from manyheads.tasks.label_metrics import regression_metrics
from manyheads.training.record import Metrics

CHUNK_ROWS = 512  # number of texts that are compared with all candidates at once


@dataclass(frozen=True)
class IndexedPairs:
    """Pairs of a data set as indices of distinct texts, so that each text is encoded once.

    texts  distinct texts
    first  index of the first item with each text
    rows   index of the text of each item in each column, (C, N): the texts, their pairs and, if present, the negatives
    """

    texts: list[str]
    first: list[int]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, data: TextPairs) -> IndexedPairs:
        index: dict[str, int] = {}
        first: list[int] = []
        rows = np.empty((len(data.sides), len(data)), dtype=np.int64)
        for column, texts in enumerate(data.sides):
            for item, text in enumerate(texts):
                rows[column, item] = found = index.setdefault(text, len(index))
                if found == len(first):
                    first.append(item)
        return cls(list(index), first, rows)


class Retrieval(NamedTuple):
    """Rank of the pair of each text (N,) from 1, index of the nearest candidate text (N,), and the losses (N,)."""

    ranks: Tensor
    nearest: Tensor
    losses: Tensor


def retrieval(vectors: Tensor, rows: NDArray[np.int64], temperature: float = 1.0) -> Retrieval:
    """Rank all second texts and hard negatives by their cosine similarity to each text.

    A candidate with the similarity of the pair ranks before it. The text itself and its other pairs do not count. The
    loss is the cross-entropy of the similarities, divided by the temperature, to the pair.

    vectors  vectors of the distinct texts, (texts, D)
    rows     as in `IndexedPairs`
    """
    candidates, places = np.unique(rows[1:], return_inverse=True)
    own = torch.from_numpy(places.reshape(len(rows) - 1, -1)[0])
    right = defaultdict(set)  # indices of the candidates that count as no negatives of a text
    for text, at in zip(rows[0].tolist(), own.tolist(), strict=True):
        right[text].add(at)
    for at in np.flatnonzero(np.isin(candidates, rows[0])).tolist():
        right[int(candidates[at])].add(at)
    chosen = vectors[torch.from_numpy(candidates)]
    found = []
    for part in torch.arange(rows.shape[1]).split(CHUNK_ROWS):
        texts = rows[0, part.numpy()]
        similarities = vectors[torch.from_numpy(texts)] @ chosen.T
        items = torch.arange(len(part))
        pairs = similarities[items, own[part]]
        hidden = [(item, at) for item, text in enumerate(texts.tolist()) for at in right[text]]
        similarities[tuple(torch.tensor(hidden).T)] = -torch.inf
        ranks = 1 + (similarities >= pairs[:, None]).sum(1)
        similarities[items, own[part]] = pairs
        nearest = torch.from_numpy(candidates)[similarities.argmax(1)]
        scaled = similarities / temperature
        found.append((ranks, nearest, scaled.logsumexp(1) - scaled[items, own[part]]))
    return Retrieval(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def retrieval_metrics(ranks: Tensor, candidates: int) -> Metrics:
    """Return the mean reciprocal rank of the pairs, and the fractions of pairs among the first one and ten."""
    signature = f"{len(ranks):,} texts, {candidates:,} candidates"
    values = {"mrr": (1 / ranks.double()).mean()} | {
        f"recall_at_{count}": (ranks <= count).double().mean() for count in (1, 10)
    }
    return {name: {"value": float(value), "signature": signature} for name, value in values.items()}


def score_metrics(similarities: Tensor, scores: list[float]) -> Metrics:
    """Return the Pearson and Spearman correlation of cosine similarities with the scores of the data."""
    measured = regression_metrics(similarities.tolist(), scores)
    return {name: measured[name] for name in ("spearman", "pearson")}
