"""The product's training tasks with random data that is ready in memory, so that no step waits for files.

Text models read blocks and sentence pairs through the product's own batches. Masked words and images are made once,
because masking and decoding them is work of the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.ours import generator, seeded
from benchmarks.train_translation import Corpus as Sizes
from benchmarks.training import MASKED
from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.loader import ImageBatch
from manyheads.tasks.images.objective import ImageClassificationObjective
from manyheads.tasks.language.objective import LanguageModelingObjective
from manyheads.tasks.masked_words.objective import Batch, MaskedLMObjective
from manyheads.tasks.targets import Target
from manyheads.tasks.translation.objective import Corpus, TranslationObjective

PAD, END = 0, 2
BATCHES = 10_000  # of an epoch, which no run reaches


class Sentences(Sequence[NDArray[np.int64]]):
    """Token ids in memory, as a `TokenStore` holds them in a file."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._rows = [np.array(row) for row in rows]
        self.lengths = np.array([len(row) for row in rows])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> NDArray[np.int64]:  # type: ignore[override]  # no slices
        return self._rows[index]


def language(preset: str, rows: int, length: int, compute: ComputeConfig) -> LanguageModelingObjective:
    model: Any = seeded(preset)
    stream = np.random.default_rng(0).integers(1, model.config.vocab, 200 * rows * length, dtype=np.int64)
    return LanguageModelingObjective(model, None, stream, stream[: length + 1], 1,  # type: ignore[arg-type]
                                compute=compute, block=length, rows=rows, random=True, seed=0)  # fmt: skip


class MaskedWords(MaskedLMObjective):
    """The task with one batch again and again."""

    ready: Any = None

    def batches(self, epoch: int) -> Sequence[Any]:
        return Repeated(self.ready)

    def save(self, out: Path) -> str:
        return directory.save(out, self.model)


class Repeated(Sequence[Any]):
    """One batch, BATCHES times."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: Any) -> Any:
        return self._batch


def words(preset: str, rows: int, length: int, compute: ComputeConfig) -> MaskedWords:
    model: Any = seeded(preset, head="masked_lm")
    ids = torch.randint(1, model.config.vocab, (rows, length), generator=generator())
    at = torch.randperm(ids.numel(), generator=generator())[: max(1, round(MASKED * ids.numel()))].sort().values
    data: Any = SimpleNamespace(rules=SimpleNamespace(next_sentence=False))
    task = MaskedWords(model, None, data, data, compute=compute, batch_tokens=ids.numel(), seed=0)  # type: ignore[arg-type]
    lengths = torch.full((rows,), length)
    task.ready = Batch(ids, lengths, torch.zeros_like(ids), at, ids.flatten()[at], None)
    return task


class Images(ImageClassificationObjective):
    """The task with one batch again and again."""

    def __init__(self, model: Any, compute: ComputeConfig, batch: ImageBatch) -> None:
        self.model, self.compute, self.teacher, self.ready = model.to(compute.device), compute, None, batch
        self.target = Target("classes", tuple(model.config.labels))
        self._forward = compute.compile(self.model.forward)

    def batches(self, epoch: int) -> Sequence[ImageBatch]:
        return Repeated(self.ready)

    def save(self, out: Path) -> str:
        return directory.save(out, self.model)


def images(preset: str, rows: int, compute: ComputeConfig) -> Images:
    model: Any = seeded(preset)
    c, random = model.config, np.random.default_rng(0)
    pixels = random.standard_normal((rows, c.channels, c.image_size, c.image_size), dtype=np.float32)
    return Images(model, compute, ImageBatch(pixels, random.integers(0, len(c.labels), rows)))


def sizes(preset: str, pairs: int, vocabulary: int) -> Sizes:
    return Sizes(pairs, vocabulary, vocabulary, preset)


def translation(of: Sizes, tokens: int, compute: ComputeConfig) -> TranslationObjective:
    v = of.source_vocab
    model: Any = seeded(of.preset, source_vocab=v, target_vocab=v, pad=PAD, end=END, start=PAD, output_bias=True)
    sources, targets = of.sentences()
    corpus = Corpus(Sentences(sources), Sentences(targets), limit=100)  # type: ignore[arg-type]
    return TranslationObjective(model, None, None, corpus, corpus,  # type: ignore[arg-type]
                           compute=compute, batch_tokens=tokens, smoothing=0.0, seed=0)  # fmt: skip
