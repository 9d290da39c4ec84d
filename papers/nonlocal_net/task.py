"""Training task, metrics and predictor for classifying video clips."""

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
from manyheads.calls import checked_methods
from manyheads.core.config import Precision
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.data.batching import Lazy
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.models.nonlocal_net import NonLocalNet
from manyheads.tasks.evaluation import scored_data, values
from manyheads.tasks.images.predictor import ImageClassifier
from manyheads.tasks.label_evaluation import LabelEvaluation
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import upcast
from manyheads.training.objective import Better, Loss
from manyheads.training.record import Metrics
from papers.nonlocal_net.moving_digits import Clips, ClipSource

EVALUATION_BATCH = 64  # number of video clips in an evaluation batch


@dataclass(frozen=True, eq=False)
class Batch:
    """Batch of normalized video clips (B, C, T, Y, X) with labels (B,)."""

    clips: Tensor
    labels: Tensor

    @property
    def items(self) -> int:
        return len(self.labels)


@dataclass(eq=False)
class ClipTask:
    """Training task for the classification of video clips, with the cross-entropy of the labels."""

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
        clips = self.train.subset(rows.tolist())
        return Batch(clip_tensor(clips.pixels, self.preprocessing), label_indices(clips, self.model.config.labels))

    def loss(self, batch: Batch) -> Loss:
        clips, labels = (part.to(self.compute.device) for part in (batch.clips, batch.labels))
        logits = upcast(self._forward(clips))  # (B, L)
        correct = (logits.detach().argmax(-1) == labels).sum()
        return Loss(F.cross_entropy(logits, labels, reduction="sum"), batch.items, correct)

    def validate(self) -> dict[str, float]:
        """Return the validation loss per clip and the accuracy."""
        scores = log_probabilities(self.model, self.validation, self.preprocessing, self.compute)
        return values(clip_metrics(scores, label_indices(self.validation, self.model.config.labels)))

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, preprocessing=self.preprocessing.as_dict())


def clip_tensor(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> Tensor:
    """Convert grayscale video clips (B, T, Y, X) to normalized model input (B, 1, T, Y, X)."""
    (mean,), (std,) = preprocessing.mean, preprocessing.std
    return (torch.from_numpy(pixels)[:, None].float() / 255 - mean) / std


def label_indices(clips: Clips, labels: tuple[str, ...]) -> Tensor:
    """Return the index of each clip's label in the model's list of labels, (N,)."""
    return torch.tensor([labels.index(label) for label in clips.labels])


@torch.inference_mode()
def log_probabilities(model: NonLocalNet, clips: Clips, preprocessing: Preprocessing, compute: ComputeConfig) -> Tensor:
    """Return the log-probabilities of all labels for each clip, (N clips, L labels), in float32 on the CPU."""
    model.eval()

    def scores(first: int) -> Tensor:  # (B, L)
        batch = clip_tensor(clips.pixels[first : first + EVALUATION_BATCH], preprocessing)
        with compute.autocast():
            return model(batch.to(compute.device)).float().log_softmax(-1).cpu()

    return torch.cat([*distributed_map(range(0, len(clips), EVALUATION_BATCH), scores)])


def clip_metrics(scores: Tensor, truth: Tensor) -> Metrics:
    """Return the loss and the accuracy, from log-probabilities (N, L) of L labels and the right labels (N,) of N
    clips.
    """
    counted = f"{scores.shape[1]} labels, {len(truth):,} clips"
    measures = {"loss": F.nll_loss(scores, truth), "accuracy": (scores.argmax(1) == truth).double().mean()}
    return {name: {"value": float(value), "signature": counted} for name, value in measures.items()}


@checked_methods
class ClipClassifier(ImageClassifier):
    """Classifier of video clips, as returned by `load` for a run on video clips.

    If the input is an image, the model reads it as a clip of one frame.
    """

    def evaluate_clips(self, clips: Clips) -> LabelEvaluation:
        """Classify the video clips, and compare the predicted labels with the true labels."""
        assert isinstance(self.model, NonLocalNet)
        scores = log_probabilities(self.model, clips, self.preprocessing, self.compute)  # (N, L)
        labels = self.target.labels
        metrics = clip_metrics(scores, label_indices(clips, labels))
        places = [f"clip {number:,}" for number in range(1, len(clips) + 1)]
        return LabelEvaluation.of(places, clips.labels, labels, scores, metrics)

    def outcome(  # type: ignore[override]  # Clips are not in tables, so they have no columns.
        self, data: object = None, *, skip_bad_lines: bool = False
    ) -> LabelEvaluation:
        """Evaluate the model on the test clips of its training run.

        The data are generated, so no other data can be given.
        """
        return self.evaluate_clips(scored_data(self.path, data, ClipSource(), skip_bad_lines=skip_bad_lines))


def load(run: str | Path, *, precision: Precision = "float32", threads: int | None = None) -> ClipClassifier:
    """Load a run on video clips. The options are those of `manyheads.load`."""
    return ClipClassifier(directory.load(run), prepare(precision, threads))
