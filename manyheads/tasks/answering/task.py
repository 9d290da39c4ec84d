"""Answering questions with a span of a text, as BERT does it for SQuAD (Devlin 2018, sections 4.2 and 4.3).

Question and context are read as a pair. Each token gets two logits, of being the answer's first and its last token.
Any model serves whose `forward(tokens, lengths, segments)` gives them. A long context is read in overlapping windows;
in one that does not hold the whole answer the answer is the first token, [CLS], and so it is where there is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, token_batches
from manyheads.data.readers.squad import Answer, Questions
from manyheads.tasks.answering.metrics import squad_metrics
from manyheads.tasks.answering.passages import (
    MAX_ANSWER,
    NULL,
    Passage,
    likeliest,
    passage_logits,
    passages,
    target_of,
)
from manyheads.tasks.evaluation import values
from manyheads.tasks.outputs import padded
from manyheads.training.loss import upcast
from manyheads.training.task import Better, Loss


@dataclass(frozen=True)
class Batch:
    """Padded passages (B, T) with lengths (B,) and segments (B, T), and the positions of the answers (B, 2)."""

    ids: Tensor
    lengths: Tensor
    segments: Tensor
    targets: Tensor
    items: int  # passages: each has one answer


@dataclass(eq=False)
class AnsweringTask:
    """What the training loop trains: the mean of the cross-entropies of the answer's first and last token.

    batch_tokens  padded tokens of a micro-batch
    max_length, stride, max_query  as of `passages`
    """

    unit: ClassVar = "passages"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "squad_f1": "higher", "squad_em": "higher"}

    model: Any
    tokenizer: Tokenizer
    train: Questions
    validation: Questions
    _: KW_ONLY
    compute: ComputeConfig
    batch_tokens: int
    max_length: int
    stride: int
    max_query: int
    seed: int

    def __post_init__(self) -> None:
        self.model.to(self.compute.device)
        limits = {"max_length": self.max_length, "stride": self.stride, "max_query": self.max_query}
        self._passages, self._targets = _with_targets(self.tokenizer, self.train, limits)
        self._lengths = [len(passage.ids) for passage in self._passages]
        self._validation_passages, self._validation_targets = _with_targets(self.tokenizer, self.validation, limits)
        self._forward = self.compute.compile(self.model.forward)

    @property
    def mean_length(self) -> int:
        """Tokens of a passage of the training data."""
        return round(sum(self._lengths) / len(self._lengths))

    def batches(self, epoch: int) -> Sequence[Batch]:
        rows = token_batches(self._lengths, self._lengths, self.batch_tokens, seed=self.seed, epoch=epoch)
        return Lazy(rows, self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        passages = [self._passages[i] for i in rows]
        ids, lengths = padded([p.ids for p in passages], self.model.config.pad)
        segments, _ = padded([p.segments for p in passages], 0)
        return Batch(ids, lengths, segments, torch.tensor([self._targets[i] for i in rows]), len(rows))

    def loss(self, batch: Batch) -> Loss:
        moved = (batch.ids, batch.lengths, batch.segments, batch.targets)
        ids, lengths, segments, targets = (t.to(self.compute.device) for t in moved)
        logits = upcast(self._forward(ids, lengths, segments))  # (B, T, 2)
        beyond = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]  # (B, T)
        logits = logits.masked_fill(beyond[..., None], -torch.inf)
        total = F.cross_entropy(logits, targets, reduction="sum") / 2  # over the tokens, for first and last
        return Loss(total, batch.items)

    def validate(self) -> dict[str, float]:
        """The loss per passage, and SQuAD's F1 and exact match of the answers."""
        items = self.validation.items
        logits = passage_logits(self.model, self._validation_passages, self.compute)  # (T, 2) each
        losses = [
            float(F.cross_entropy(of_passage.T, torch.tensor(target)))  # the mean of first and last
            for of_passage, target in zip(logits, self._validation_targets, strict=True)
        ]
        threshold = 0.0 if self.validation.impossible else None
        contexts = [item.context for item in items]
        answers = likeliest(self._validation_passages, logits, contexts, 1, MAX_ANSWER, threshold)
        truths = [[answer.text for answer in item.answers] for item in items]
        return {
            "loss": sum(losses) / len(losses),
            **values(squad_metrics([ranked[0].text for ranked in answers], truths)),
        }

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer)


def _with_targets(
    tokenizer: Tokenizer, questions: Questions, limits: dict[str, int]
) -> tuple[list[Passage], list[tuple[int, int]]]:
    """Passages and where the first of the answers stands in each."""
    windows = passages(tokenizer, [(item.question, item.context) for item in questions.items], **limits)
    targets = []
    for passage in windows:
        answers = questions.items[passage.question].answers
        targets.append(target_of(passage, *_bare(answers[0])) if answers else (NULL, NULL))
    return windows, targets


def _bare(answer: Answer) -> tuple[int, int]:
    """Where it begins and ends without the blanks around it, which may be part of no token."""
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    return start, start + len(answer.text.strip())
