"""Training task for tagging words with a BERT encoder (Devlin 2018, section 5.3).

The first subword of each word gets the word's tag. The model can be any module whose `forward(tokens, lengths)` returns
a logit for each of `config.labels` at every token. A text longer than the model's limit is read in overlapping windows.
Each word is tagged in the window where it has the most context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.conll import Tagged
from manyheads.data.text.windows import WordWindow, word_windows
from manyheads.models.bert import Bert
from manyheads.models.bert_features import BertFeatures
from manyheads.tasks.evaluation import values
from manyheads.tasks.outputs import moved, outputs, padded
from manyheads.tasks.tagging.metrics import tagging_metrics
from manyheads.tasks.text_objective import TextObjective
from manyheads.training.loss import upcast
from manyheads.training.objective import Better, Loss

# label index of tokens without a target, such as later subwords of a word; the loss ignores these tokens
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Batch of padded windows (B, T) with lengths (B,), and the label index of each token (B, T).

    A token without a label has the index IGNORED.
    """

    ids: Tensor
    lengths: Tensor
    labels: Tensor
    items: int  # number of words in the batch that have a tag


@dataclass(eq=False)
class TaggingObjective(TextObjective[Bert | BertFeatures, Tagged]):
    """Training task for tagging words, with the cross-entropy of the tags.

    max_length  maximum number of tokens in a window
    """

    unit: ClassVar = "words"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "entity_f1": "higher", "accuracy": "higher"}

    _: KW_ONLY
    max_length: int

    _forward: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = self.model.config.labels
        for tagged in (self.train, self.validation):
            tagged.check_labels(labels)
        self._index = {label: i for i, label in enumerate(labels)}
        self._windows = word_windows(self.tokenizer, self.train.words, self.max_length)
        self._lengths = [len(window.ids) for window in self._windows]
        self._validation_windows = word_windows(self.tokenizer, self.validation.words, self.max_length)
        self._forward = self.compute.compile(self.model.forward)

    @property
    def mean_length(self) -> int:
        """Mean number of tokens in a window of the training texts."""
        return round(sum(self._lengths) / len(self._lengths))

    @property
    def tokens_per_word(self) -> float:
        """Mean number of tokens that the model reads per word of the training texts."""
        return sum(self._lengths) / sum(len(window.words) for window in self._windows)

    def batches(self, epoch: int) -> Sequence[Batch]:
        return self.lazy_batches(self._lengths, epoch, self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        windows = [self._windows[i] for i in rows]
        ids, lengths = padded([window.ids for window in windows], self.model.config.pad)
        labels = torch.full_like(ids, IGNORED)
        for row, window in zip(labels, windows, strict=True):
            tags = self.train.tags[window.sentence]
            row[window.positions] = torch.tensor([self._index[tags[word]] for word in window.words])
        return Batch(ids, lengths, labels, sum(len(window.words) for window in windows))

    def loss(self, batch: Batch) -> Loss:
        batch = moved(batch, self.compute.device)
        logits = upcast(self._forward(batch.ids, batch.lengths))  # (B, T, L)
        total = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return Loss(total, batch.items)

    def validate(self) -> dict[str, float]:
        """Return the validation loss per word, the F1 of whole entities, and the accuracy of single tags."""
        truth, labels = self.validation.tags, self.model.config.labels
        scores = tag_log_probabilities(self.model, self._validation_windows, list(map(len, truth)), self.compute)
        loss = F.nll_loss(torch.cat(scores), torch.tensor([self._index[tag] for tags in truth for tag in tags]))
        metrics = tagging_metrics([[labels[i] for i in sentence.argmax(1)] for sentence in scores], truth)
        return {"loss": float(loss), **values(metrics)}


def tag_log_probabilities(
    model: Bert | BertFeatures, windows: Sequence[WordWindow], words: Sequence[int], compute: ComputeConfig
) -> list[Tensor]:
    """Return the log-probabilities of all labels for each word of each sentence.

    The result has a float32 tensor (words, L) on the CPU for each sentence.

    windows  the windows of all sentences
    words    number of words in each sentence
    """
    scores = [torch.zeros(count, len(model.config.labels)) for count in words]
    for i, logits in outputs(model, compute, [window.ids for window in windows], model.config.pad):  # (T, L)
        window = windows[i]
        scores[window.sentence][window.words] = logits[window.positions].log_softmax(-1)
    return scores
