"""Answering questions with a span of a text, as BERT does it for SQuAD (Devlin 2018, sections 4.2 and 4.3).

Question and context are read as a pair. Each token gets two logits, of being the answer's first and its last token.
Any model serves whose `forward(tokens, lengths, segments)` gives them. A long context is read in overlapping windows;
in one that does not hold the whole answer the answer is the first token, [CLS], and so it is where there is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import Route
from manyheads.data.batching import Lazy, token_batches
from manyheads.data.squad import Answer, Questions
from manyheads.tasks.answering.metrics import squad_metrics
from manyheads.tasks.answering.passages import (
    MAX_ANSWER,
    NULL,
    Passage,
    check_pairs,
    collate,
    likeliest,
    passage_logits,
    passages,
    target_of,
)


@dataclass(frozen=True)
class Batch:
    """Padded passages (B, T) with lengths (B,) and segments (B, T), and the positions of the answers (B, 2)."""

    ids: Tensor
    lengths: Tensor
    segments: Tensor
    targets: Tensor
    tokens: int  # passages: each has one answer


class AnsweringTask:
    """What the training loop trains: the mean of the cross-entropies of the answer's first and last token.

    batch_tokens  padded tokens of a micro-batch
    max_length, stride, max_query  as of `passages`
    """

    unit = "passages"

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        train: Questions,
        validation: Questions,
        *,
        route: Route,
        batch_tokens: int,
        max_length: int,
        stride: int,
        max_query: int,
        seed: int,
    ) -> None:
        check_pairs(model, "question answering")
        self.model, self.tokenizer, self.route = model.to(route.device), tokenizer, route
        self.batch_tokens, self.seed = batch_tokens, seed
        limits = {"max_length": max_length, "stride": stride, "max_query": max_query}
        self._train, self._targets = _with_targets(tokenizer, train, limits)
        self._questions = validation
        self._validation, self._validation_targets = _with_targets(tokenizer, validation, limits)
        self._lengths = [len(p.ids) for p in self._train]
        self._forward = route.compile(self.model.forward)

    @property
    def mean_length(self) -> int:
        """Tokens of a passage of the training data."""
        return round(sum(self._lengths) / len(self._lengths))

    def batches(self, epoch: int) -> Sequence[Batch]:
        rows = token_batches(self._lengths, self._lengths, self.batch_tokens, seed=self.seed, epoch=epoch)
        return Lazy(rows, self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        padded = collate([self._train[i] for i in rows.tolist()], self.model.config.pad)
        return Batch(*padded, torch.tensor([self._targets[i] for i in rows.tolist()]), len(rows))

    def loss(self, batch: Batch) -> Tensor:
        moved = (batch.ids, batch.lengths, batch.segments, batch.targets)
        ids, lengths, segments, targets = (t.to(self.route.device) for t in moved)
        logits = self._forward(ids, lengths, segments).float()  # (B, T, 2)
        beyond = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]  # (B, T)
        logits = logits.masked_fill(beyond[..., None], -torch.inf)
        return F.cross_entropy(logits, targets, reduction="sum") / 2  # over the tokens, for first and last

    def validate(self) -> dict[str, float]:
        """The loss per passage, and SQuAD's F1 and exact match of the answers."""
        several, items = self._validation, self._questions.items
        logits = passage_logits(self.model, several, self.route)
        pairs = zip(logits, self._validation_targets, strict=True)
        total = sum(float(F.cross_entropy(each.T, torch.tensor(target), reduction="sum")) / 2 for each, target in pairs)
        threshold = 0.0 if self._questions.impossible else None
        found = likeliest(several, logits, [item.context for item in items], 1, MAX_ANSWER, threshold)
        truths = [[answer.text for answer in item.answers] for item in items]
        metrics = squad_metrics([answers[0].text for answers in found], truths)
        return {"loss": total / len(several), **{name: metric["value"] for name, metric in metrics.items()}}

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer)


def _with_targets(
    tokenizer: Tokenizer, questions: Questions, limits: dict[str, int]
) -> tuple[list[Passage], list[tuple[int, int]]]:
    """Passages and where the first of the answers stands in each."""
    several = passages(tokenizer, [(item.question, item.context) for item in questions.items], **limits)
    targets = []
    for passage in several:
        answers = questions.items[passage.question].answers
        targets.append(target_of(passage, *_bare(answers[0])) if answers else (NULL, NULL))
    return several, targets


def _bare(answer: Answer) -> tuple[int, int]:
    """Where it begins and ends without the blanks around it, which may be part of no token."""
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    return start, start + len(answer.text.strip())
