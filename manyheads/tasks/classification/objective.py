"""Training task for classifying texts and pairs of texts, or for predicting a number or several labels of each.

The model can be any module whose `forward(tokens, lengths, segments)` returns a logit for each of `config.labels`, such
as a Transformer encoder or a simpler baseline. BERT reads a pair as one sequence with two segments (Devlin 2018,
section 4.1). GPT reads a pair with a delimiter token, and may also train on next-token prediction (Radford 2018,
sections 3.2, 3.3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads import directory
from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, balanced_rows, token_batches
from manyheads.data.readers.labeled import Labeled
from manyheads.errors import UserError
from manyheads.models.gpt import GPT
from manyheads.tasks.classification.teacher import TextTeacher
from manyheads.tasks.distillation import TEACHER_BATCHES, differing_labels
from manyheads.tasks.encoding import Encoded, encode
from manyheads.tasks.evaluation import values
from manyheads.tasks.outputs import moved, outputs
from manyheads.tasks.targets import Target
from manyheads.tasks.text_objective import TextObjective
from manyheads.training.loss import smoothed_cross_entropy, upcast
from manyheads.training.objective import Better, Loss, LossPart

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """Batch of padded texts: token ids (B, T), lengths (B,), segments (B, T) for pairs, and labels as in `Target`.

    weights  factor of the loss of each text, (B,); None: all factors are 1
    """

    ids: Tensor
    lengths: Tensor
    segments: Tensor | None
    labels: Tensor
    weights: Tensor | None

    @property
    def items(self) -> int:
        """Number of texts or pairs in the batch, the weight of this batch in a mean of losses."""
        return len(self.labels)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of texts, and the number of target tokens for the auxiliary language-modeling loss."""
        return self.items, int((self.lengths - 1).sum())


@dataclass(eq=False)
class ClassificationObjective(TextObjective[Model[Config], Labeled]):
    """Training task for text classification.

    batch_items  maximum number of texts in a micro-batch; None: no limit
    max_length   maximum number of tokens in a text; longer texts are an error, or are cut with truncate=True
    target       meaning of the logits, with their loss and metrics
    balanced     True: draw the texts of each epoch at random, so that all classes are equally frequent
    auxiliary    weight of a GPT's language-modeling loss, the mean over the tokens of a batch
    teacher      model whose logits the student learns, too; None: only the labels
    """

    unit: ClassVar = "texts"

    _: KW_ONLY
    batch_items: int | None
    max_length: int | None
    truncate: bool
    target: Target
    balanced: bool = False
    auxiliary: float = 0.0
    teacher: TextTeacher | None = None

    _forward: Callable[..., Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher is not None:
            self.teacher.model.to(self.compute.device)
        self._texts, self._labels = self._encoded(self.train), self.target.truth(self.train)
        self._weights = _relative(self.train.weights)
        self._validation_texts, self._targets = self._encoded(self.validation), self.target.truth(self.validation)
        forward = self.model.hidden if isinstance(self.model, GPT) and self.auxiliary else self.model.forward
        self._forward = self.compute.compile(forward)

    def _encoded(self, data: Labeled) -> Encoded:
        texts = encode(
            self.tokenizer, data.texts, data.second_texts, self.max_length, truncate=self.truncate, where=data.place
        )
        if texts.cut:
            note = f"{texts.cut:,} of {len(data):,} texts are cut to {self.max_length:,} tokens"
            logger.info(f"{data.file or 'the corpus'}: {note}")
        return texts

    @property
    def metrics(self) -> Mapping[str, Better]:
        return self.target.metrics

    @property
    def tokens_per_item(self) -> float:
        return float(self._texts.lengths.mean())

    def batches(self, epoch: int) -> Sequence[Batch]:
        lengths, drawn = self._texts.lengths, None
        if self.balanced:
            drawn = balanced_rows(self._labels.numpy(), self.seed, epoch)
            lengths = lengths[drawn]
        rows = token_batches(
            lengths, lengths, self.batch_tokens, seed=self.seed, epoch=epoch, max_sentences=self.batch_items
        )
        return Lazy(rows if drawn is None else [drawn[batch] for batch in rows], self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        weights = None if self._weights is None else self._weights[rows]
        return Batch(*self._texts.batch(rows.tolist(), padding_id(self.model)), self._labels[rows], weights)

    def loss(self, batch: Batch) -> Loss:
        counts, batch = batch.counts, moved(batch, self.compute.device)
        labels = batch.labels
        if self.auxiliary:
            assert isinstance(self.model, GPT)
            hidden = self._forward(batch.ids, batch.lengths)  # (B, T, D)
            logits = self.model.classify(hidden, batch.lengths)
            next_tokens = self.auxiliary * _next_token_loss(self.model, hidden, batch.ids, batch.lengths)
            others: tuple[LossPart, ...] = (LossPart(next_tokens, counts[1]),)
        else:
            logits, others = self._forward(batch.ids, batch.lengths, batch.segments), ()  # (B, L)
        total = self.target.loss(logits, labels, batch.weights)
        if self.teacher is not None:
            distillation = self.teacher.distillation
            taught = distillation.loss(upcast(logits), self.teacher.logits(batch.ids, batch.lengths, batch.segments))
            total = (1 - distillation.share) * total + distillation.share * taught
        return Loss(total, batch.items, self.target.correct(logits, labels), others)

    @torch.inference_mode()
    def differing_labels(self) -> float:
        """Return the fraction of the first training texts for which the teacher predicts another label."""
        assert self.teacher is not None
        first = (moved(batch, self.compute.device) for batch in islice(self.batches(0), TEACHER_BATCHES))
        return differing_labels(
            (self.teacher.logits(batch.ids, batch.lengths, batch.segments), batch.labels.cpu()) for batch in first
        )

    def validate(self) -> dict[str, float]:
        """Return the validation loss per text and the metrics of the target."""
        logits, target = label_logits(self.model, self._validation_texts, self.compute), self._targets
        # Without weights, the validation losses of runs with and without class weights are comparable.
        loss = replace(self.target, weights=None).loss(logits, target) / len(target)
        return {"loss": float(loss), **values(self.target.measure(logits, target))}

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer, label_type=self.target.label_type)


def _relative(weights: Sequence[float]) -> Tensor | None:
    """Return the weights of items with the mean 1, so that their scale has no effect; None if there are none."""
    if not weights:
        return None
    if not sum(weights):
        raise UserError("the weights of all training items are 0: expected a number above 0")
    return torch.tensor(weights) * (len(weights) / sum(weights))


def _next_token_loss(model: GPT, hidden: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum of the next-token cross-entropies, without padding.

    hidden  hidden states after the last layer, (B, T, D)
    ids     token ids of the texts, (B, T)
    """
    padding = torch.arange(1, ids.shape[1], device=ids.device) >= lengths[:, None]
    targets = ids[:, 1:].masked_fill(padding, -1)
    return smoothed_cross_entropy(
        hidden[:, :-1].flatten(0, 1), model.output_weight, None, targets.flatten(), smoothing=0.0, pad=None
    )


def padding_id(model: Model[Config]) -> int:
    """Return the padding id of a model.

    A model without padding id ignores padding tokens, so the result is then an arbitrary id.
    """
    return model.pad or 0


def label_logits(model: Model[Config], encoded: Encoded, compute: ComputeConfig) -> Tensor:
    """Return the logits of each text, (N, L), in float32 on the CPU."""
    found = torch.empty(len(encoded), len(model.labels))
    for i, logits in outputs(model, compute, encoded.ids, padding_id(model), encoded.segments):
        found[i] = logits
    return found
