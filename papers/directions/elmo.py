"""Pretraining of ELMo: each direction predicts the next word of its reading (Peters 2018, section 3.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import pre_tokenizers
from torch import Tensor

from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import token_batches
from manyheads.data.readers.documents import Documents
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.running_text import DocumentSource
from manyheads.data.text.tokenizers import encode_all
from manyheads.models.elmo import Elmo
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.outputs import moved, padded
from manyheads.tasks.text_objective import TextObjective
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.objective import Better, Loss
from papers.directions.recipes import ElmoPretrainingConfig
from papers.directions.spelling import spelled_words

UNKNOWN, BEGIN, END = range(3)  # ids of other words, and of the marks around a text


@dataclass(frozen=True)
class Batch:
    """Batch of texts: bytes (B, T) with lengths (B,), and the ids of their words, (B, W). The id of padding is -1."""

    ids: Tensor
    lengths: Tensor
    words: Tensor

    @property
    def items(self) -> int:
        """Number of predictions: one for each pair of neighbors, in each direction."""
        return 2 * int((self.words[:, 1:] >= 0).sum())


@dataclass(frozen=True)
class Passages:
    """Passages of documents, as words joined by spaces, with the ids of the words that are predicted."""

    rows: Sequence[str]
    index: Mapping[str, int]

    @classmethod
    def of(cls, documents: Documents, length: int, index: Mapping[str, int] | None = None, count: int = 0) -> Passages:
        """Divide documents into passages of at most `length` words.

        index  ids of words. By default, the `count` ids are those of the most frequent words of the documents
        """
        rows = [row for document in documents.documents for row in passages(" ".join(document), length)]
        if index is None:
            frequent = Counter(word for row in rows for word in row.split(" ")).most_common(count - 3)
            index = {word: i for i, (word, _) in enumerate(frequent, 3)}
        return cls(rows, index)

    @cached_property
    def lengths(self) -> list[int]:
        """Numbers of bytes of the passages, with a space before each word and two marks."""
        return [len(row.encode()) + 3 for row in self.rows]

    def words(self, row: int) -> list[int]:
        return [BEGIN, *(self.index.get(word, UNKNOWN) for word in self.rows[row].split(" ")), END]


def passages(text: str, length: int) -> Iterator[str]:
    words = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)]
    for first in range(0, len(words), length):
        yield " ".join(words[first : first + length])


@dataclass(eq=False)
class ElmoObjective(TextObjective[Elmo, Passages]):
    """Training task of ELMo. The loss is the mean cross-entropy of the next and the previous words."""

    unit: ClassVar = "predictions"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "perplexity": "lower"}

    def batches(self, epoch: int) -> Sequence[Batch]:
        return self.lazy_batches(self.train.lengths, epoch, lambda rows: self._batch(self.train, rows))

    def loss(self, batch: Batch) -> Loss:
        batch = moved(batch, self.compute.device)
        forward, backward = self.model(batch.ids, batch.lengths).chunk(2, -1)  # each (B, W, D)
        pairs = (forward[:, :-1], batch.words[:, 1:]), (backward[:, 1:], batch.words[:, :-1])
        real = (batch.words[:, 1:] >= 0).flatten()
        losses = [
            smoothed_cross_entropy(
                states.flatten(0, 1)[real], self.model.output.weight, self.model.output.bias, words.flatten()[real],
                smoothing=0.0, pad=None,
            )
            for states, words in pairs
        ]  # fmt: skip
        return Loss(torch.stack(losses).sum(), batch.items)

    def validate(self) -> dict[str, float]:
        """Return the validation loss per prediction, and the perplexity."""
        lengths = self.validation.lengths

        def run_batch(rows: NDArray[np.int64]) -> tuple[float, int]:
            batch = self._batch(self.validation, rows)
            with self.compute.autocast():
                return self.loss(batch).total.item(), batch.items

        rows = token_batches(lengths, lengths, self.batch_tokens, seed=0, epoch=0)
        totals, counts = zip(*distributed_map(rows, run_batch), strict=True)
        mean = torch.tensor(sum(totals) / sum(counts))
        return {"loss": float(mean), "perplexity": float(mean.exp())}

    def _batch(self, data: Passages, rows: NDArray[np.int64]) -> Batch:
        ids = encode_all(self.tokenizer, [data.rows[row] for row in rows])
        return Batch(*padded(ids, self.model.config.pad), padded([data.words(row) for row in rows], -1)[0])


class ElmoPretraining(DataTask[ElmoPretrainingConfig, Documents]):
    """Task of pretraining an ELMo."""

    may_change = ("column",)

    def planned_model(self) -> Elmo:
        with torch.device("meta"):
            return self._model(self.config.words)

    def plan(self) -> Plan:
        return Plan(self.planned_model(), self.config.batch_tokens)

    def data(self) -> DocumentSource:
        cache = self.run.out / "state" / "tokens"
        return DocumentSource(**self.located, column=self.config.column, cache_folder=cache)

    def build(self, splits: SplitData[Documents], compute: ComputeConfig) -> Job:
        config = self.config
        train = Passages.of(splits.train, config.length, count=config.words)
        validation = Passages.of(splits.validation, config.length, train.index)
        model = self._model(len(train.index) + 3)
        objective = ElmoObjective(
            model, spelled_words(), train, validation, compute=compute, batch_tokens=config.batch_tokens,
            seed=config.training.seed,
        )  # fmt: skip
        # mean numbers of predictions of a direction, and of bytes, in a passage
        count = sum(row.count(" ") + 2 for row in train.rows) / len(train.rows)
        bytes_per_passage = round(sum(train.lengths) / len(train.rows))
        words = costs.TRAINING_PASSES * 2 * model.config.width * model.config.words
        flops = costs.training_flops(model, bytes_per_passage) / (2 * count) + words
        return Job(model, config.training, objective, flops=flops)

    def _model(self, words: int) -> Elmo:
        return build(
            preset_for_data(self.config.preset, ("elmo",), self.config.model, {"words": words, "head": "words"})
        )
