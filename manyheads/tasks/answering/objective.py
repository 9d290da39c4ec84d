"""Training task for extractive question answering, as with BERT on SQuAD (Devlin 2018, sections 4.2 and 4.3).

The model reads question and context as a pair. Each token gets two logits: one as first token, one as last token of the
answer. The model can be any module whose `forward(tokens, lengths, segments)` returns these logits. A long context is
read in overlapping windows. If a window does not contain the whole answer, or if there is no answer, the target is the
first token, [CLS].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.data.readers.squad import Answer, Questions
from manyheads.models.bert import Bert
from manyheads.tasks.answering.metrics import squad_metrics
from manyheads.tasks.answering.passages import (
    MAX_ANSWER,
    NULL,
    Passage,
    best_answers,
    passage_logits,
    passages,
    target_of,
)
from manyheads.tasks.evaluation import values
from manyheads.tasks.outputs import moved, padded
from manyheads.tasks.text_objective import TextObjective
from manyheads.training.loss import upcast
from manyheads.training.objective import Better, Loss


@dataclass(frozen=True)
class Batch:
    """Batch of padded passages (question and window of its context): tokens (B, T), lengths (B,) and segments (B, T).

    targets  positions of the answers' first and last tokens, (B, 2)
    """

    ids: Tensor
    lengths: Tensor
    segments: Tensor
    targets: Tensor
    items: int  # number of passages in the batch, where each passage has one answer


@dataclass(eq=False)
class AnsweringObjective(TextObjective[Bert, Questions]):
    """Training task for question answering.

    The loss is the mean of two cross-entropies, for the first and the last token of the answer.

    max_length, stride, max_query  limits of a passage in tokens, see `passages`
    """

    unit: ClassVar = "passages"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "squad_f1": "higher", "squad_em": "higher"}

    _: KW_ONLY
    max_length: int
    stride: int
    max_query: int

    _forward: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = {"max_length": self.max_length, "stride": self.stride, "max_query": self.max_query}
        self._passages, self._targets = _with_targets(self.tokenizer, self.train, limits)
        self._lengths = [len(passage.ids) for passage in self._passages]
        self._validation_passages, self._validation_targets = _with_targets(self.tokenizer, self.validation, limits)
        self._forward = self.compute.compile(self.model.forward)

    @property
    def mean_length(self) -> int:
        """Mean number of tokens in a training passage (question and window of its context)."""
        return round(sum(self._lengths) / len(self._lengths))

    def batches(self, epoch: int) -> Sequence[Batch]:
        return self.lazy_batches(self._lengths, epoch, self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        passages = [self._passages[i] for i in rows]
        ids, lengths = padded([p.ids for p in passages], self.model.config.pad)
        segments, _ = padded([p.segments for p in passages], 0)
        return Batch(ids, lengths, segments, torch.tensor([self._targets[i] for i in rows]), len(rows))

    def loss(self, batch: Batch) -> Loss:
        batch = moved(batch, self.compute.device)
        logits = upcast(self._forward(batch.ids, batch.lengths, batch.segments))  # (B, T, 2)
        # mask that is true at padding tokens, (B, T)
        is_padding = torch.arange(batch.ids.shape[1], device=batch.ids.device) >= batch.lengths[:, None]
        logits = logits.masked_fill(is_padding[..., None], -torch.inf)
        # The softmax runs over the tokens of a passage. The loss is the mean over first and last token.
        total = F.cross_entropy(logits, batch.targets, reduction="sum") / 2
        return Loss(total, batch.items)

    def validate(self) -> dict[str, float]:
        """Return the validation loss per passage, and SQuAD's F1 and exact match."""
        items = self.validation.items
        # two logits for each token, a tensor (T, 2) for each passage
        logits = passage_logits(self.model, self._validation_passages, self.compute)
        losses = [
            # The loss is the mean over the first and the last token of the answer.
            float(F.cross_entropy(of_passage.T, torch.tensor(target)))
            for of_passage, target in zip(logits, self._validation_targets, strict=True)
        ]
        threshold = 0.0 if self.validation.impossible else None
        contexts = [item.context for item in items]
        answers = best_answers(self._validation_passages, logits, contexts, 1, MAX_ANSWER, threshold)
        truths = [[answer.text for answer in item.answers] for item in items]
        return {
            "loss": sum(losses) / len(losses),
            **values(squad_metrics([ranked[0].text for ranked in answers], truths)),
        }


def _with_targets(
    tokenizer: Tokenizer, questions: Questions, limits: dict[str, int]
) -> tuple[list[Passage], list[tuple[int, int]]]:
    """Return the passages of all questions, and the token positions of each question's first answer.

    The positions are those of the answer's first and last token in each passage.
    """
    windows = passages(tokenizer, [(item.question, item.context) for item in questions.items], **limits)
    targets = []
    for passage in windows:
        answers = questions.items[passage.question].answers
        targets.append(target_of(passage, *_strip_whitespace(answers[0])) if answers else (NULL, NULL))
    return windows, targets


def _strip_whitespace(answer: Answer) -> tuple[int, int]:
    """Return the start and end character of an answer after surrounding whitespace is removed.

    Such whitespace may not be part of any token.
    """
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    return start, start + len(answer.text.strip())
