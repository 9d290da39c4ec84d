"""Training a network that tells what a clip shows, its scores, and the network in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy
from manyheads.data.embedded.moving_digits import Clips, ClipSource
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.models.nonlocal_net import NonLocalNet
from manyheads.tasks.evaluation import LabelOutcome, scored_data, values
from manyheads.tasks.images.predictor import ImageClassifier
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import upcast
from manyheads.training.record import Metrics
from manyheads.training.task import Better, Loss

SCORED = 64  # clips that are scored at once


@dataclass(frozen=True, eq=False)
class Batch:
    """Clips (B, C, T, Y, X), normalised, with labels (B,)."""

    clips: Tensor
    labels: Tensor

    @property
    def items(self) -> int:
        return len(self.labels)


@dataclass(eq=False)
class ClipTask:
    """What the training loop trains: cross-entropy with the labels."""

    unit: ClassVar = "clips"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "accuracy": "higher"}

    model: NonLocalNet
    preprocessing: Preprocessing
    train: Clips
    validation: Clips
    compute: ComputeConfig
    batch_items: int
    seed: int

    def __post_init__(self) -> None:
        self.model.to(self.compute.device)
        self._forward = self.compute.compile(self.model.forward)

    def batches(self, epoch: int) -> Lazy[Batch]:
        order = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, epoch])))
        rows = order.permutation(len(self.train))
        return Lazy(np.array_split(rows, -(-len(rows) // self.batch_items)), self._batch)

    def _batch(self, rows: NDArray[np.int64]) -> Batch:
        some = self.train.subset(rows.tolist())
        return Batch(tensor(some.pixels, self.preprocessing), label_numbers(some, self.model.config.labels))

    def loss(self, batch: Batch) -> Loss:
        clips, labels = (part.to(self.compute.device) for part in (batch.clips, batch.labels))
        logits = upcast(self._forward(clips))  # (B, L)
        correct = (logits.detach().argmax(-1) == labels).sum()
        return Loss(F.cross_entropy(logits, labels, reduction="sum"), batch.items, correct)

    def validate(self) -> dict[str, float]:
        """The loss per clip, and the share that is told right."""
        scores = log_probabilities(self.model, self.validation, self.preprocessing, self.compute)
        return values(clip_metrics(scores, label_numbers(self.validation, self.model.config.labels)))

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, preprocessing=self.preprocessing.as_dict())


def tensor(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> Tensor:
    """Grey clips (B, T, Y, X) as the network sees them, (B, 1, T, Y, X)."""
    (mean,), (std,) = preprocessing.mean, preprocessing.std
    return (torch.from_numpy(pixels)[:, None].float() / 255 - mean) / std


def label_numbers(clips: Clips, labels: tuple[str, ...]) -> Tensor:
    """(N,): the index of each clip's label among the model's."""
    return torch.tensor([labels.index(label) for label in clips.labels])


@torch.inference_mode()
def log_probabilities(model: NonLocalNet, clips: Clips, preprocessing: Preprocessing, compute: ComputeConfig) -> Tensor:
    """(N, L) float32 on the CPU."""
    model.eval()

    def scores(first: int) -> Tensor:  # (B, L)
        part = tensor(clips.pixels[first : first + SCORED], preprocessing)
        with compute.autocast():
            return model(part.to(compute.device)).float().log_softmax(-1).cpu()

    return torch.cat([*distributed_map(range(0, len(clips), SCORED), scores)])


def clip_metrics(scores: Tensor, truth: Tensor) -> Metrics:
    """Of log-probabilities (N, L) against labels (N,)."""
    counted = f"{scores.shape[1]} labels, {len(truth):,} clips"
    measures = {"loss": F.nll_loss(scores, truth), "accuracy": (scores.argmax(1) == truth).double().mean()}
    return {name: {"value": float(value), "signature": counted} for name, value in measures.items()}


class ClipClassifier(ImageClassifier):
    """What `manyheads.load` gives for a run on clips. An image is a clip of one frame to it."""

    def evaluate_clips(self, clips: Clips) -> LabelOutcome:
        """Classify the clips and score the labels against those given."""
        scores = log_probabilities(self.model, clips, self.preprocessing, self.compute)  # (N, L)
        metrics = clip_metrics(scores, label_numbers(clips, self.labels))
        places = [f"clip {number:,}" for number in range(1, len(clips) + 1)]
        return LabelOutcome.of(places, clips.labels, self.labels, scores, metrics)

    def outcome(self, data: str | None = None, *, skip_bad_lines: bool = False) -> LabelOutcome:
        """On the run's own clips; others it has none of."""
        return self.evaluate_clips(scored_data(self.path, data, ClipSource(), skip_bad_lines=skip_bad_lines))
