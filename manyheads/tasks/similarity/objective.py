"""Training objective of embeddings: cosine similarities of pairs, against in-batch negatives or against scores.

In-batch negatives are the second texts of the other pairs in a batch (Gao 2021, equation 5; the loss
MultipleNegativesRankingLoss of sentence-transformers). Hard negatives are further candidates. For pairs with scores,
the loss is the squared error of the cosine similarity (Reimers and Gurevych 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from manyheads import directory
from manyheads.data.batching import Lazy, token_batches
from manyheads.data.readers.text_pairs import MAX_SCORE, TextPairs
from manyheads.errors import UserError
from manyheads.interop.sentences import Pool, encoder_files
from manyheads.models.bert import Bert
from manyheads.tasks.embedding import pooled_states
from manyheads.tasks.encoding import Encoded, encode
from manyheads.tasks.outputs import outputs
from manyheads.tasks.similarity.metrics import IndexedPairs, retrieval, retrieval_metrics, score_metrics
from manyheads.tasks.text_objective import TextObjective
from manyheads.training.loss import upcast
from manyheads.training.objective import Better, Loss

_METRICS: tuple[dict[str, Better], dict[str, Better]] = (
    {"loss": "lower", "mrr": "higher", "recall_at_1": "higher", "recall_at_10": "higher"},
    {"loss": "lower", "spearman": "higher", "pearson": "higher"},
)


@dataclass(frozen=True)
class Batch:
    """Batch of B pairs.

    columns  token ids (B, T) and lengths (B,) of the texts, of their pairs and, if present, of their negatives
    right    (B, B) or, with hard negatives, (B, 2B): True for candidates that are no negatives of a text, other than
             its pair
    scores   similarities from 0 to 1, (B,); None if the other pairs are negatives
    """

    columns: list[tuple[Tensor, Tensor]]
    right: Tensor
    scores: Tensor | None

    @property
    def items(self) -> int:
        return len(self.columns[0][1])


@dataclass(eq=False)
class EmbeddingObjective(TextObjective[Bert, TextPairs]):
    """Training task for embeddings.

    A batch with a single pair has no negative, so it is left out. With several ranks, the negatives of a pair come from
    the pairs of the same rank.

    batch_items  maximum number of pairs in a micro-batch
    max_length   maximum number of tokens in a text; longer texts are an error, or are cut with truncate=True
    pool         pooling of the hidden states
    temperature  number by which cosine similarities are divided
    """

    unit: ClassVar = "pairs"

    _: KW_ONLY
    batch_items: int
    max_length: int
    truncate: bool
    pool: Pool
    temperature: float

    _forward: Callable[..., Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pairs, self._encoded = self._tokenized(self.train)
        self._held, self._held_encoded = self._tokenized(self.validation)
        self._forward = self.compute.compile(self.model.encode)
        self._scale = score_scale(self.train)
        if not len(self.batches(0)):
            raise UserError(
                f"each batch has one pair, which has no negatives: expected two or more; raise batch_items, which is "
                f"{self.batch_items:,}, or batch_tokens, which is {self.batch_tokens:,}"
            )

    def _tokenized(self, data: TextPairs) -> tuple[IndexedPairs, Encoded]:
        pairs = IndexedPairs.of(data)
        encoded = encode(
            self.tokenizer, pairs.texts, None, self.max_length, truncate=self.truncate,
            where=lambda index: data.place(pairs.first[index]),
        )  # fmt: skip
        return pairs, encoded

    @property
    def metrics(self) -> Mapping[str, Better]:
        return _METRICS[bool(self.train.scores)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each text in each column, (C, N)."""
        return self._encoded.lengths[self._pairs.rows]

    def batches(self, epoch: int) -> Sequence[Batch]:
        texts, others = self.lengths[0], self.lengths[1:].max(0)
        rows = token_batches(
            texts, others, self.batch_tokens, seed=self.seed, epoch=epoch, max_sentences=self.batch_items
        )
        needed = 2 if self.train.kind == "pairs" else 1
        return Lazy([batch for batch in rows if len(batch) >= needed], self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        keys = self._pairs.rows[:, rows]
        columns = [self._encoded.batch(column.tolist(), self.model.config.pad)[:2] for column in keys]
        scores = torch.tensor([self.train.scores[i] / self._scale for i in rows]) if self.train.scores else None
        return Batch(columns, torch.from_numpy(known_pairs(keys)), scores)

    def loss(self, batch: Batch) -> Loss:
        device = self.compute.device
        vectors = [self._vectors(ids.to(device), lengths.to(device)) for ids, lengths in batch.columns]  # each (B, D)
        if batch.scores is not None:
            similarities = (vectors[0] * vectors[1]).sum(-1)
            return Loss(F.mse_loss(similarities, batch.scores.to(device), reduction="sum"), batch.items)
        with torch.autocast(self.compute.device_type, enabled=False):  # The temperature multiplies rounding errors.
            logits = vectors[0] @ torch.cat(vectors[1:]).T / self.temperature  # (B, B) or (B, 2B)
        logits = logits.masked_fill(batch.right.to(device), -torch.inf)
        own = torch.arange(batch.items, device=device)
        correct = (logits.detach().argmax(-1) == own).sum()
        return Loss(F.cross_entropy(logits, own, reduction="sum"), batch.items, correct)

    def _vectors(self, ids: Tensor, lengths: Tensor, encoder: Callable[..., Tensor] | None = None) -> Tensor:
        states = upcast((encoder or self._forward)(ids, lengths))  # (B, T, D)
        return F.normalize(pooled_states(states, lengths, self.pool), dim=-1)

    def validate(self) -> dict[str, float]:
        """Return the loss per pair and the metrics of the validation data.

        The loss of a pair compares it with the second texts of all other pairs, and not only of a batch.
        """
        vectors = torch.empty(len(self._held_encoded), self.model.config.width)
        for i, vector in outputs(
            lambda ids, lengths: self._vectors(ids, lengths, self.model.encode),
            self.compute, self._held_encoded.ids, self.model.config.pad,
        ):  # fmt: skip
            vectors[i] = vector
        rows = self._held.rows
        if self.train.scores:
            similarities = (vectors[rows[0]] * vectors[rows[1]]).sum(-1)
            scores = torch.tensor(self.validation.scores) / self._scale
            found = score_metrics(similarities, self.validation.scores)
            loss = F.mse_loss(similarities, scores)
        else:
            ranks, _, losses = retrieval(vectors, rows, self.temperature)
            found, loss = retrieval_metrics(ranks, len(np.unique(rows[1:]))), losses.mean()
        return {"loss": float(loss), **{name: metric["value"] for name, metric in found.items()}}

    def save(self, out: Path) -> str:
        """Save the model with its tokenizer and the files of sentence-transformers. Return the model type."""
        directory.write_files(out, encoder_files(self.pool, self.model.config.width, self.max_length))
        return super().save(out)


def score_scale(data: TextPairs) -> float:
    """Return the score of texts with equal meaning: 1, or 5 if a score exceeds 1."""
    return MAX_SCORE if max(data.scores, default=0.0) > 1 else 1.0


def known_pairs(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the candidates that are no negatives of a text, although they belong to another pair, (B, candidates).

    They equal the text, its pair, or the pair of an equal text.

    keys  number of the text in each column of B pairs, (C, B); equal texts have equal numbers. The candidates are the
          texts of all columns but the first
    """
    texts, candidates = keys[0], keys[1:].ravel()
    equal_texts = (texts[:, None] == texts).astype(np.float32)  # (B, B)
    is_pair = (keys[1][:, None] == candidates).astype(np.float32)  # (B, candidates)
    known: NDArray[np.bool_] = (equal_texts @ is_pair > 0) | (texts[:, None] == candidates)
    np.fill_diagonal(known, False)
    return known
