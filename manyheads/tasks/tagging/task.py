"""Tagging the words of a text, as BERT does it (Devlin 2018, section 5.3): the first sub-token of a word gets its tag.

Any model serves whose `forward(tokens, lengths)` gives a logit for each of `config.labels` at every token. Texts of
any length do: what is longer than the model takes is read in overlapping windows, each word where it has most context.
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
from manyheads.data.batching import Lazy, pad, token_batches
from manyheads.data.conll import Tagged
from manyheads.data.windows import WordWindow, word_windows
from manyheads.tasks.tagging.metrics import tagging_metrics

IGNORED = -100  # the label of tokens that no word is read from


@dataclass(frozen=True)
class Batch:
    """Padded windows (B, T) with lengths (B,), and the label of each token (B, T), which may be IGNORED."""

    ids: Tensor
    lengths: Tensor
    labels: Tensor
    tokens: int  # words that are read


class TaggingTask:
    """What the training loop trains: the cross-entropy of the tags.

    batch_tokens  padded tokens of a micro-batch
    max_length    tokens of a window
    """

    unit = "words"

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        train: Tagged,
        validation: Tagged,
        *,
        route: Route,
        batch_tokens: int,
        max_length: int,
        seed: int,
    ) -> None:
        self.model, self.tokenizer, self.route = model.to(route.device), tokenizer, route
        self.batch_tokens, self.seed = batch_tokens, seed
        labels = model.config.labels
        for tagged in (train, validation):
            tagged.check_labels(labels)
        index = {label: i for i, label in enumerate(labels)}
        self._windows = word_windows(tokenizer, train.words, max_length)
        self._labels = [[index[tag] for tag in tags] for tags in train.tags]
        self._lengths = [len(window.ids) for window in self._windows]
        self._validation = validation
        self._validation_windows = word_windows(tokenizer, validation.words, max_length)
        self._forward = route.compile(self.model.forward)

    @property
    def mean_length(self) -> int:
        """Tokens of a window of the training data."""
        return round(sum(self._lengths) / len(self._lengths))

    @property
    def tokens_per_word(self) -> float:
        """Tokens that are read for each word of the training data."""
        return sum(self._lengths) / sum(len(window.words) for window in self._windows)

    def batches(self, epoch: int) -> Sequence[Batch]:
        rows = token_batches(self._lengths, self._lengths, self.batch_tokens, seed=self.seed, epoch=epoch)
        return Lazy(rows, self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        chosen = [self._windows[i] for i in rows.tolist()]
        ids = pad([w.ids for w in chosen], self.model.config.pad)
        labels = np.full_like(ids, IGNORED)
        for row, window in zip(labels, chosen, strict=True):
            row[window.positions] = [self._labels[window.sentence][word] for word in window.words]
        lengths = torch.tensor([len(w.ids) for w in chosen])
        return Batch(torch.from_numpy(ids), lengths, torch.from_numpy(labels), sum(len(w.words) for w in chosen))

    def loss(self, batch: Batch) -> Tensor:
        ids, lengths, labels = (t.to(self.route.device) for t in (batch.ids, batch.lengths, batch.labels))
        logits = self._forward(ids, lengths)  # (B, T, L)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum")

    def validate(self) -> dict[str, float]:
        """The loss per word, entity F1, and the accuracy of single tags."""
        wanted, names = self._validation.tags, self.model.config.labels
        scores = tag_log_probabilities(self.model, self._validation_windows, list(map(len, wanted)), self.route)
        index = {label: i for i, label in enumerate(names)}
        true = torch.tensor([index[tag] for tags in wanted for tag in tags])
        loss = -torch.cat(scores).gather(1, true[:, None]).mean()
        metrics = tagging_metrics([[names[i] for i in each.argmax(1)] for each in scores], wanted)
        return {"loss": float(loss), **{name: metric["value"] for name, metric in metrics.items()}}

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, self.tokenizer)


def tag_log_probabilities(
    model: Any, several: Sequence[WordWindow], lengths: Sequence[int], route: Route, batch_tokens: int = 4096
) -> list[Tensor]:
    """How probable each label is for each word of each sentence: natural logarithms, (words, L) float32 on the CPU.

    lengths  words of each sentence; `several` are the windows of all
    """
    found = [torch.zeros(length, len(model.config.labels)) for length in lengths]
    sizes = [len(window.ids) for window in several]
    for rows in token_batches(sizes, sizes, max([batch_tokens, *sizes]), seed=0, epoch=0):
        chosen = [several[i] for i in rows]
        ids = torch.from_numpy(pad([w.ids for w in chosen], model.config.pad)).to(route.device)
        with torch.inference_mode(), route.computing():
            logits = model(ids, torch.tensor([len(w.ids) for w in chosen], device=route.device))  # (B, T, L)
        scores = logits.float().log_softmax(-1).cpu()
        for row, window in zip(scores, chosen, strict=True):
            found[window.sentence][window.words] = row[window.positions]
    return found
