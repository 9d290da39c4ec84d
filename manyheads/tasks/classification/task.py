"""Training task for classifying texts and pairs of texts, with the cross-entropy of the labels.

The model can be any module whose `forward(tokens, lengths, segments)` returns a logit for each of `config.labels`, such
as a Transformer encoder or a simpler baseline. BERT reads a pair as one sequence with two segments (Devlin 2018,
section 4.1). GPT reads a pair with a delimiter token, and may also train on next-token prediction (Radford 2018,
sections 3.2, 3.3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, token_batches
from manyheads.data.readers.labeled import Labeled
from manyheads.data.text.text_faults import ItemError, beginning, fault_of
from manyheads.data.text.tokenizers import positions_after_truncation
from manyheads.errors import UserError
from manyheads.tasks.evaluation import values
from manyheads.tasks.outputs import outputs, padded
from manyheads.training.loss import smoothed_cross_entropy, upcast
from manyheads.training.record import Metrics
from manyheads.training.task import Better, Loss, LossPart

logger = logging.getLogger(__name__)

CHUNK_TEXTS = 2000  # number of texts that are passed to the tokenizer at once


@dataclass(frozen=True)
class Encoded:
    """Token ids of texts or pairs of texts, with special tokens. `segments` is None for single texts."""

    ids: list[NDArray[np.int32]]
    segments: list[NDArray[np.int32]] | None
    cut: int  # number of texts that were longer than the length limit

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    def batch(self, rows: Sequence[int], padding: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the token ids (B, T), the lengths (B,), and the segments (B, T) of pairs, or None for single texts."""
        segments = None if self.segments is None else padded([self.segments[i] for i in rows], 0)[0]
        return *padded([self.ids[i] for i in rows], padding), segments


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    limit: int | None,
    *,
    truncate: bool,
    where: Callable[[int], str] | None = None,
) -> Encoded:
    """Tokenize every text or pair of texts, and cut it to `limit` tokens if `truncate` is true.

    In a pair, the longer text is cut. An empty text becomes one unknown token. Raises ItemError for invalid Unicode,
    and for a text over the limit if `truncate` is false.

    where  function that returns the name of a text, for the error message
    """
    hint = "shorten it, or cut it with truncate=true (--truncate)"

    def error(index: int, fault: str) -> ItemError:
        return ItemError(index, fault, where(index) if where else None)

    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "") or 0
    ids: list[NDArray[np.int32]] = []
    segments: list[NDArray[np.int32]] = []
    too_long: list[tuple[int, int]] = []
    for first in range(0, len(texts), CHUNK_TEXTS):
        sides = [list(side[first : first + CHUNK_TEXTS]) for side in (texts, pairs) if side is not None]
        for side in sides:
            for i, text in enumerate(side):
                side[i] = beginning(text, limit) if truncate else text
                if fault := fault_of(side[i], limit, hint):
                    raise error(first + i, fault)
        chunk: Any = sides[0] if pairs is None else list(zip(*sides, strict=True))
        encodings: list[Encoding] = tokenizer.encode_batch(chunk)
        for i, encoding in enumerate(encodings):
            tokens = np.array(encoding.ids or [unknown], dtype=np.int32)
            segment_ids = np.array(encoding.type_ids or [0], dtype=np.int32)
            if limit is not None and len(tokens) > limit:
                too_long.append((first + i, len(tokens)))
                if truncate:
                    kept_tokens = positions_after_truncation(encoding.sequence_ids, limit)
                    tokens, segment_ids = tokens[kept_tokens], segment_ids[kept_tokens]
            ids.append(tokens)
            segments.append(segment_ids)
    if too_long and not truncate:
        index, length = too_long[0]
        others = f" ({len(too_long):,} texts are longer)" if len(too_long) > 1 else ""
        raise error(index, f"has {length:,} tokens, the limit is {limit:,}{others}: {hint}")
    return Encoded(ids, None if pairs is None else segments, len(too_long))


@dataclass(frozen=True)
class Batch:
    """Batch of padded texts: token ids (B, T), lengths (B,), segments (B, T) for pairs, and labels (B,)."""

    ids: Tensor
    lengths: Tensor
    segments: Tensor | None
    labels: Tensor

    @property
    def items(self) -> int:
        """Number of texts or pairs in the batch, the weight of this batch in a mean of losses."""
        return len(self.labels)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of texts, and the number of target tokens for the auxiliary language-modeling loss."""
        return self.items, int((self.lengths - 1).sum())


@dataclass(eq=False)
class ClassificationTask:
    """Training task for text classification.

    batch_tokens  maximum number of tokens in a micro-batch, padding included; `batch_items` is its maximum number of
                  texts
    max_length    maximum number of tokens in a text; longer texts are an error, or are cut with truncate=True
    auxiliary     weight of a GPT's language-modeling loss, the mean over the tokens of a batch
    """

    unit: ClassVar = "texts"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "accuracy": "higher", "f1": "higher"}

    model: Any
    tokenizer: Tokenizer
    train: Labeled
    validation: Labeled
    _: KW_ONLY
    compute: ComputeConfig
    batch_tokens: int
    batch_items: int | None
    max_length: int | None
    truncate: bool
    seed: int
    auxiliary: float = 0.0

    def __post_init__(self) -> None:
        self.model.to(self.compute.device)
        labels = self.model.config.labels
        self._texts, self._labels = self._encoded(self.train), label_ids(self.train, labels)
        self._validation_texts, self._targets = self._encoded(self.validation), label_ids(self.validation, labels)
        self._forward = self.compute.compile(self.model.hidden if self.auxiliary else self.model.forward)

    def _encoded(self, data: Labeled) -> Encoded:
        texts = encode(
            self.tokenizer, data.texts, data.second_texts, self.max_length, truncate=self.truncate, where=data.place
        )
        if texts.cut:
            note = f"{texts.cut:,} of {len(data):,} texts are cut to {self.max_length:,} tokens"
            logger.info(f"{data.file or 'the corpus'}: {note}")
        return texts

    @property
    def tokens_per_item(self) -> float:
        return float(self._texts.lengths.mean())

    def batches(self, epoch: int) -> Sequence[Batch]:
        lengths = self._texts.lengths
        rows = token_batches(
            lengths, lengths, self.batch_tokens, seed=self.seed, epoch=epoch, max_sentences=self.batch_items
        )
        return Lazy(rows, self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        return Batch(*self._texts.batch(rows.tolist(), padding_id(self.model)), self._labels[rows])

    def loss(self, batch: Batch) -> Loss:
        device = self.compute.device
        ids, lengths, labels = (tensor.to(device) for tensor in (batch.ids, batch.lengths, batch.labels))
        if self.auxiliary:
            hidden = self._forward(ids, lengths)  # (B, T, D)
            logits = self.model.classify(hidden, lengths)
            next_tokens = self.auxiliary * _next_token_loss(self.model, hidden, ids, lengths)
            others: tuple[LossPart, ...] = (LossPart(next_tokens, batch.counts[1]),)
        else:
            segments = None if batch.segments is None else batch.segments.to(device)
            logits, others = self._forward(ids, lengths, segments), ()  # (B, L)
        correct = (logits.detach().argmax(-1) == labels).sum()
        total = F.cross_entropy(upcast(logits), labels, reduction="sum")
        return Loss(total, batch.items, correct, others)

    def validate(self) -> dict[str, float]:
        """Return the validation loss per text, the accuracy and the F1 score."""
        scores = log_probabilities(self.model, self._validation_texts, self.compute)
        metrics = classification_metrics(scores.argmax(1).tolist(), self._targets.tolist(), self.model.config.labels)
        return {
            "loss": float(F.nll_loss(scores, self._targets)),
            **values(metrics),
        }

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer)


def _next_token_loss(model: Any, hidden: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    """Return the sum of the next-token cross-entropies, without padding.

    hidden  hidden states after the last layer, (B, T, D)
    ids     token ids of the texts, (B, T)
    """
    padding = torch.arange(1, ids.shape[1], device=ids.device) >= lengths[:, None]
    targets = ids[:, 1:].masked_fill(padding, -1)
    return smoothed_cross_entropy(
        hidden[:, :-1].flatten(0, 1), model.output_weight, None, targets.flatten(), smoothing=0.0, pad=None
    )


def padding_id(model: Any) -> int:
    """Return the padding id of a model.

    A model without padding id ignores padding tokens, so the result is then an arbitrary id.
    """
    return getattr(model.config, "pad", None) or 0


def label_ids(data: Labeled, labels: Sequence[str]) -> Tensor:
    """Return the label index of each text, (N,).

    Raises UserError, with the location in the data, for a label that the model does not have.
    """
    index = {label: i for i, label in enumerate(labels)}
    for i, label in enumerate(data.labels):
        if label not in index:
            raise UserError(f"{data.place(i)}: label {label!r}: the model has only the labels {', '.join(labels[:8])}")
    return torch.tensor([index[label] for label in data.labels])


def log_probabilities(model: Any, encoded: Encoded, compute: ComputeConfig) -> Tensor:
    """Return the log-probabilities of all labels for each text, (N, L), in float32 on the CPU."""
    scores = torch.empty(len(encoded), len(model.config.labels))
    for i, logits in outputs(model, compute, encoded.ids, padding_id(model), encoded.segments):
        scores[i] = logits.log_softmax(-1)
    return scores


def classification_metrics(predicted: Sequence[int], truth: Sequence[int], labels: Sequence[str]) -> Metrics:
    """Return the accuracy and the F1 score of predicted labels.

    With two labels, the F1 score treats the second label as positive, as GLUE does for MRPC. With more labels, F1 is
    the mean over all labels that occur.
    """
    predictions, targets = np.array(predicted), np.array(truth)
    if not len(targets):
        raise UserError("found no test items to score: the test data are empty")

    def f1(label: int) -> float:
        hits = int(((predictions == label) & (targets == label)).sum())
        either = int((predictions == label).sum() + (targets == label).sum())
        return 2 * hits / either if either else 0.0

    if len(labels) == 2:
        score, signature = f1(1), f"of the label {labels[1]!r}"
    else:
        occurring = sorted({*predicted, *truth})
        score, signature = float(np.mean([f1(label) for label in occurring])), "unweighted mean over the labels"
    counted = f"{len(labels)} labels, {len(targets):,} items"
    return {
        "accuracy": {"value": float((predictions == targets).mean()), "signature": counted},
        "f1": {"value": score, "signature": signature},
    }
