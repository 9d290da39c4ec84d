"""Training task and metrics for image classification, with or without a teacher for distillation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.augmentation import Augmentation
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.loader import ImageBatch, ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError
from manyheads.tasks.evaluation import values
from manyheads.tasks.images.distillation import Teacher
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import upcast
from manyheads.training.record import Metrics
from manyheads.training.task import Better, Loss

TOP = 5  # The metric top5 counts an image as right if its label is among the 5 most probable labels.
EVALUATION_BATCH = 256  # number of images in an evaluation batch
TEACHER_BATCHES = 8  # number of training batches on which labels of teacher and data are compared


class ImageClassificationTask:
    """Training task for image classification.

    The loss is the cross-entropy of the labels, which may be mixed and smoothed. With a teacher, the distillation loss
    is added.

    smoothing  label smoothing: fraction of the probability that is spread evenly over all labels (Szegedy 2016)
    workers    number of processes that decode and augment images
    """

    unit = "images"

    def __init__(
        self,
        model: Any,
        preprocessing: Preprocessing,
        train: ImageData,
        validation: ImageData,
        *,
        compute: ComputeConfig,
        batch_items: int,
        augmentation: Augmentation,
        smoothing: float,
        teacher: Teacher | None,
        workers: int,
        seed: int,
    ) -> None:
        self.model, self.preprocessing, self.compute = model.to(compute.device), preprocessing, compute
        self.smoothing, self.teacher = smoothing, teacher
        if teacher is not None:
            teacher.model.to(compute.device)
        labels = model.config.labels
        self._train = ImageLoader(
            train, labels, preprocessing, batch_items=batch_items, augmentation=augmentation, seed=seed, workers=workers
        )
        self._validation = ImageLoader(validation, labels, preprocessing, batch_items=EVALUATION_BATCH)
        self._forward = compute.compile(self.model.forward)

    @property
    def metrics(self) -> dict[str, Better]:
        names = metric_names(len(self.model.config.labels))
        return {name: "lower" if name == "loss" else "higher" for name in names}

    def batches(self, epoch: int) -> Sequence[ImageBatch]:
        return self._train.epoch(epoch)

    def loss(self, batch: ImageBatch) -> Loss:
        device = self.compute.device
        images = torch.from_numpy(batch.images).to(device)  # batch of images, (B, C, Y, X)
        # label indices (B,), or label probabilities (B, L) of mixed images
        labels = torch.from_numpy(batch.labels).to(device)
        # logits (B, L), or two such tensors if the model has a class token and a distillation token
        logits = self._forward(images)
        by_class, by_distillation = logits if isinstance(logits, tuple) else (logits, logits)
        # A mixed image has two labels. The accuracy uses the label with the larger fraction.
        correct = ((by_class + by_distillation).detach().argmax(-1) == _likeliest(labels)).sum()
        total = self._cross_entropy(by_class, labels)
        if self.teacher is not None:
            share = self.teacher.share
            total = (1 - share) * total + share * self.teacher.loss(upcast(by_distillation), images)
        elif by_distillation is not by_class:
            # Without a teacher, the loss of a model with two output tokens is the mean over the two tokens.
            total = (total + self._cross_entropy(by_distillation, labels)) / 2
        return Loss(total, batch.items, correct)

    @torch.inference_mode()
    def differing_labels(self) -> float:
        """Return the fraction of training images whose label by the teacher differs from the label of the data.

        It is measured on the first augmented images. A mixed image has the label with the larger fraction. At 0 without
        mixing, hard distillation has no effect.
        """
        assert self.teacher is not None
        differing: list[Tensor] = []
        for batch in islice(self._train.epoch(0), TEACHER_BATCHES):
            predicted = self.teacher.logits(torch.from_numpy(batch.images).to(self.compute.device)).argmax(-1).cpu()
            differing.append(predicted != _likeliest(torch.from_numpy(batch.labels)))
        return float(torch.cat(differing).double().mean())

    def validate(self) -> dict[str, float]:
        """Return the validation loss per image, the accuracy top1, and top5 for more than five labels."""
        scores = log_probabilities(self.model, self._validation, self.compute)
        return values(image_metrics(scores, torch.from_numpy(self._validation.labels)))

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, preprocessing=self.preprocessing.as_dict())

    def close(self) -> None:
        """Stop the worker processes that decode and augment images."""
        self._train.close()

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(upcast(logits), labels, reduction="sum", label_smoothing=self.smoothing)


def _likeliest(labels: Tensor) -> Tensor:
    """Return the most likely label (B,) for labels (B,) or label probabilities (B, L)."""
    return labels if labels.ndim == 1 else labels.argmax(-1)


@torch.inference_mode()
def log_probabilities(model: Any, images: ImageLoader, compute: ComputeConfig) -> Tensor:
    """Return the log-probabilities of all labels (N, L), in the order of the images, in float32 on the CPU."""
    model.eval()

    def scores(batch: ImageBatch) -> Tensor:  # (B, L)
        with compute.autocast():
            return model(torch.from_numpy(batch.images).to(compute.device)).float().log_softmax(-1).cpu()

    return torch.cat([*distributed_map(images.epoch(), scores)])


def image_metrics(scores: Tensor, truth: Tensor) -> Metrics:
    """Return the metrics in `metric_names` for log-probabilities (N, L) and the right labels (N,)."""
    if not len(truth):
        raise UserError("found no images to score: the test data are empty")
    counted = f"{scores.shape[1]} labels, {len(truth):,} images"
    right = scores.topk(min(TOP, scores.shape[1])).indices == truth[:, None]  # (N, 5)
    measures = F.nll_loss(scores, truth), right[:, 0].double().mean(), right.any(1).double().mean()
    names = metric_names(scores.shape[1])
    return {name: {"value": float(value), "signature": counted} for name, value in zip(names, measures, strict=False)}


def metric_names(labels: int) -> tuple[str, ...]:
    """Return the names of the metrics for a model with this number of labels.

    The metric top5 needs more than five labels.
    """
    return ("loss", "top1", "top5") if labels > TOP else ("loss", "top1")
