"""Classification of texts and pairs of texts: the cross-entropy of their labels.

Any model serves whose `forward(tokens, lengths, segments)` gives a logit for each of `config.labels`: the textbook's
classifier and its rivals, BERT, which reads pairs as one sequence with two segments (Devlin 2018, section 4.1), and
GPT, which reads them with a token between, and may go on learning to predict them (Radford 2018, sections 3.2 and 3.3).
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
from manyheads.data.readers.labelled import Labelled
from manyheads.data.text.text_faults import ItemError, beginning, fault_of
from manyheads.data.text.tokenizers import shortened
from manyheads.errors import UserError
from manyheads.tasks.evaluation import values
from manyheads.tasks.outputs import outputs, padded
from manyheads.training.loss import smoothed_cross_entropy, upcast
from manyheads.training.record import Metrics
from manyheads.training.task import Better, Loss, LossPart

logger = logging.getLogger(__name__)

_CHUNK = 2000  # texts that are tokenised at a time


@dataclass(frozen=True)
class Encoded:
    """Token ids of texts or pairs with the tokenizer's special tokens; `segments` where there are pairs."""

    ids: list[NDArray[np.int32]]
    segments: list[NDArray[np.int32]] | None
    cut: int  # how many were longer than the limit

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    def batch(self, rows: Sequence[int], padding: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """tokens (B, T), lengths (B,), segments (B, T) or None."""
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
    """Tokens of every text or pair, cut to `limit` where asked: of a pair, the longer text is cut.

    A text of which the tokenizer leaves nothing is one unknown token. Raises ItemError for longer ones, unless they
    may be cut, and for what is no valid Unicode; `where` names an item.
    """
    hint = "shorten it, or have it cut with truncate=true (--truncate)"

    def error(index: int, fault: str) -> ItemError:
        return ItemError(index, fault, where(index) if where else None)

    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "") or 0
    ids: list[NDArray[np.int32]] = []
    segments: list[NDArray[np.int32]] = []
    longer: list[tuple[int, int]] = []
    for first in range(0, len(texts), _CHUNK):
        sides = [list(side[first : first + _CHUNK]) for side in (texts, pairs) if side is not None]
        for side in sides:
            for i, text in enumerate(side):
                side[i] = beginning(text, limit) if truncate else text
                if fault := fault_of(side[i], limit, hint):
                    raise error(first + i, fault)
        part: Any = sides[0] if pairs is None else list(zip(*sides, strict=True))
        encodings: list[Encoding] = tokenizer.encode_batch(part)
        for i, encoding in enumerate(encodings):
            tokens = np.array(encoding.ids or [unknown], dtype=np.int32)
            kinds = np.array(encoding.type_ids or [0], dtype=np.int32)
            if limit is not None and len(tokens) > limit:
                longer.append((first + i, len(tokens)))
                if truncate:
                    places = shortened(encoding.sequence_ids, limit)
                    tokens, kinds = tokens[places], kinds[places]
            ids.append(tokens)
            segments.append(kinds)
    if longer and not truncate:
        index, length = longer[0]
        others = f" ({len(longer):,} are longer)" if len(longer) > 1 else ""
        raise error(index, f"has {length:,} tokens, the limit is {limit:,}{others}: {hint}")
    return Encoded(ids, None if pairs is None else segments, len(longer))


@dataclass(frozen=True)
class Batch:
    """Padded texts (B, T) with lengths (B,), segments (B, T) of pairs, and labels (B,)."""

    ids: Tensor
    lengths: Tensor
    segments: Tensor | None
    labels: Tensor

    @property
    def items(self) -> int:
        """What the loss is summed over: items."""
        return len(self.labels)

    @property
    def counts(self) -> tuple[int, int]:
        """Items, and tokens that follow another: what a language model's loss is a mean over."""
        return self.items, int((self.lengths - 1).sum())


@dataclass(eq=False)
class ClassificationTask:
    """What the training loop trains.

    batch_tokens  padded tokens of a micro-batch, which has at most `batch_items` texts
    max_length    tokens of a text; longer ones are an error, or are cut with truncate=True
    auxiliary     weight of a GPT's loss as a language model, the mean over the tokens of a batch
    """

    unit: ClassVar = "texts"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "accuracy": "higher", "f1": "higher"}

    model: Any
    tokenizer: Tokenizer
    train: Labelled
    validation: Labelled
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
        self._validation_texts, self._truth = self._encoded(self.validation), label_ids(self.validation, labels)
        self._forward = self.compute.compile(self.model.hidden if self.auxiliary else self.model.forward)

    def _encoded(self, data: Labelled) -> Encoded:
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
        return Batch(*self._texts.batch(rows.tolist(), padding_of(self.model)), self._labels[rows])

    def loss(self, batch: Batch) -> Loss:
        device = self.compute.device
        ids, lengths, labels = (tensor.to(device) for tensor in (batch.ids, batch.lengths, batch.labels))
        if self.auxiliary:
            hidden = self._forward(ids, lengths)  # (B, T, D)
            logits = self.model.classify(hidden, lengths)
            next_tokens = self.auxiliary * _next_tokens(self.model, hidden, ids, lengths)
            others: tuple[LossPart, ...] = (LossPart(next_tokens, batch.counts[1]),)
        else:
            segments = None if batch.segments is None else batch.segments.to(device)
            logits, others = self._forward(ids, lengths, segments), ()  # (B, L)
        correct = (logits.detach().argmax(-1) == labels).sum()
        total = F.cross_entropy(upcast(logits), labels, reduction="sum")
        return Loss(total, batch.items, correct, others)

    def validate(self) -> dict[str, float]:
        """The loss per item, accuracy and F1."""
        scores = log_probabilities(self.model, self._validation_texts, self.compute)
        metrics = classification_metrics(scores.argmax(1).tolist(), self._truth.tolist(), self.model.config.labels)
        return {
            "loss": float(F.nll_loss(scores, self._truth)),
            **values(metrics),
        }

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer)


def _next_tokens(model: Any, hidden: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    """The cross-entropies, summed up, of the real ones among tokens (B, T), given the states (B, T, D) before it."""
    behind = torch.arange(1, ids.shape[1], device=ids.device) >= lengths[:, None]
    targets = ids[:, 1:].masked_fill(behind, -1)
    return smoothed_cross_entropy(
        hidden[:, :-1].flatten(0, 1), model.output_weight, None, targets.flatten(), smoothing=0.0, pad=None
    )


def padding_of(model: Any) -> int:
    """What fills up the texts of a batch; where a model names nothing, nothing reads it."""
    return getattr(model.config, "pad", None) or 0


def label_ids(data: Labelled, labels: Sequence[str]) -> Tensor:
    """The index of every label (N,). Raises UserError, with its place, for one that the model has not."""
    index = {label: i for i, label in enumerate(labels)}
    for i, label in enumerate(data.labels):
        if label not in index:
            raise UserError(f"{data.place(i)}: label {label!r}: the model tells apart {', '.join(labels[:8])}")
    return torch.tensor([index[label] for label in data.labels])


def log_probabilities(model: Any, encoded: Encoded, compute: ComputeConfig) -> Tensor:
    """(N, L) float32 on the CPU."""
    scores = torch.empty(len(encoded), len(model.config.labels))
    for i, logits in outputs(model, compute, encoded.ids, padding_of(model), encoded.segments):
        scores[i] = logits.log_softmax(-1)
    return scores


def classification_metrics(predicted: Sequence[int], truth: Sequence[int], labels: Sequence[str]) -> Metrics:
    """accuracy, and f1: of two labels the F1 of the second, the positive one (as GLUE scores MRPC), of more the mean of
    all that occur."""
    guess, right = np.array(predicted), np.array(truth)
    if not len(right):
        raise UserError("there is nothing to score: the test data are empty")

    def f1(label: int) -> float:
        hits = int(((guess == label) & (right == label)).sum())
        either = int((guess == label).sum() + (right == label).sum())
        return 2 * hits / either if either else 0.0

    if len(labels) == 2:
        score, signature = f1(1), f"of the label {labels[1]!r}"
    else:
        occurring = sorted({*predicted, *truth})
        score, signature = float(np.mean([f1(label) for label in occurring])), "mean of the labels, unweighted"
    counted = f"{len(labels)} labels, {len(right):,} items"
    return {
        "accuracy": {"value": float((guess == right).mean()), "signature": counted},
        "f1": {"value": score, "signature": signature},
    }
