"""Training task and metrics for labels or numbers of images, with or without a teacher for distillation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads import directory
from manyheads.core.config import Config
from manyheads.core.interface import ReadsImages
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.augmentation import Augmentation
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.loader import ImageBatch, ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError
from manyheads.tasks.distillation import TEACHER_BATCHES, differing_labels
from manyheads.tasks.evaluation import values
from manyheads.tasks.images.teacher import Teacher
from manyheads.tasks.targets import Target
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import upcast
from manyheads.training.objective import Better, Loss
from manyheads.training.record import Metrics

TOP = 5  # The metric top5 counts an image as right if its label is among the 5 most probable labels.
EVALUATION_BATCH = 256  # number of images in an evaluation batch


class ImageClassificationObjective:
    """Training task for image classification.

    The loss is the cross-entropy of the labels, which may be mixed and smoothed, or the loss of another target. With a
    teacher, the distillation loss is added.

    target     meaning of the logits, with their loss
    balanced   if True, draw the images of each epoch at random, so that all classes are equally frequent
    workers    number of processes that decode and augment images
    """

    unit = "images"

    def __init__(
        self,
        model: ReadsImages[Config],
        preprocessing: Preprocessing,
        train: ImageData,
        validation: ImageData,
        *,
        compute: ComputeConfig,
        batch_items: int,
        augmentation: Augmentation,
        target: Target,
        balanced: bool,
        teacher: Teacher | None,
        workers: int,
        seed: int,
    ) -> None:
        self.model, self.preprocessing, self.compute = model.to(compute.device), preprocessing, compute
        self.target, self.teacher = target, teacher
        if teacher is not None:
            teacher.model.to(compute.device)
        labels = model.labels
        self._train = ImageLoader(
            train, labels, preprocessing, batch_items=batch_items, augmentation=augmentation, seed=seed,
            workers=workers, truth=truth_of(target, train), balanced=balanced,
        )  # fmt: skip
        self._validation = evaluation_loader(validation, target, preprocessing)
        self._forward = compute.compile(self.model.forward)

    @property
    def metrics(self) -> dict[str, Better]:
        return image_metric_names(self.target)

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
        correct = self.target.correct(by_class + by_distillation, _likeliest(labels))
        total = self.target.loss(by_class, labels)
        if self.teacher is not None:
            share = self.teacher.distillation.share
            total = (1 - share) * total + share * self.teacher.loss(upcast(by_distillation), images)
        elif by_distillation is not by_class:
            # Without a teacher, the loss of a model with two output tokens is the mean over the two tokens.
            total = (total + self.target.loss(by_distillation, labels)) / 2
        return Loss(total, batch.items, correct)

    @torch.inference_mode()
    def differing_labels(self) -> float:
        """Return the fraction of training images for which the teacher predicts another label than the data have.

        It is measured on the first augmented training images. For a mixed image, the label with the larger fraction
        counts. If the result is 0 and images are not mixed, hard distillation has no effect.
        """
        assert self.teacher is not None
        return differing_labels(
            (
                self.teacher.logits(torch.from_numpy(batch.images).to(self.compute.device)),
                _likeliest(torch.from_numpy(batch.labels)),
            )
            for batch in islice(self._train.epoch(0), TEACHER_BATCHES)
        )

    def validate(self) -> dict[str, float]:
        """Return the validation loss per image and the metrics of the target."""
        logits = image_logits(self.model, self._validation, self.compute)
        return values(image_metrics(self.target, logits, torch.from_numpy(self._validation.labels)))

    def save(self, out: Path) -> str:
        kind = self.target.label_type
        return directory.save(out, self.model, preprocessing=self.preprocessing.as_dict(), label_type=kind)

    def close(self) -> None:
        """Stop the worker processes that decode and augment images."""
        self._train.close()


def _likeliest(labels: Tensor) -> Tensor:
    """Return the most likely label (B,) for labels (B,) or label probabilities (B, L)."""
    return labels if labels.ndim == 1 else labels.argmax(-1)


def truth_of(target: Target, images: ImageData) -> NDArray[np.float32] | None:
    """Return the numbers or the several labels of images as an array; None for classes."""
    return None if target.kind == "classes" else target.truth(images).numpy()


def evaluation_loader(images: ImageData, target: Target, preprocessing: Preprocessing) -> ImageLoader:
    truth = truth_of(target, images)
    return ImageLoader(images, target.labels, preprocessing, batch_items=EVALUATION_BATCH, truth=truth)


@torch.inference_mode()
def image_logits(model: ReadsImages[Config], images: ImageLoader, compute: ComputeConfig) -> Tensor:
    """Return the logits of all images (N, L), in the order of the images, in float32 on the CPU."""
    model.eval()

    def logits(batch: ImageBatch) -> Tensor:  # (B, L)
        with compute.autocast():
            found: Tensor = model(torch.from_numpy(batch.images).to(compute.device))
            return found.float().cpu()

    return torch.cat([*distributed_map(images.epoch(), logits)])


def image_metrics(target: Target, logits: Tensor, truth: Tensor) -> Metrics:
    """Return the metrics in `image_metric_names` for logits (N, L) and the true labels or numbers."""
    if not len(truth):
        raise UserError("found no images to score: the test data are empty")
    loss = float(replace(target, weights=None, smoothing=0.0).loss(logits, truth)) / len(truth)
    metrics, count = target.measure(logits, truth), logits.shape[1]
    counted = f"{len(truth):,} images" if target.kind == "regression" else f"{count} labels, {len(truth):,} images"
    if target.kind == "classes":
        right = logits.topk(min(TOP, count)).indices == truth[:, None]  # (N, 5)
        tops = {"top1": right[:, 0], "top5": right.any(1)}
        measured: Metrics = {n: {"value": float(r.double().mean()), "signature": counted} for n, r in tops.items()}
        metrics = measured | {name: metrics[name] for name in ("macro_f1", "mcc")}
    metrics = {"loss": {"value": loss, "signature": counted}, **metrics}
    return {name: metrics[name] for name in image_metric_names(target)}


def image_metric_names(target: Target) -> dict[str, Better]:
    """Return the metrics of a target, with the direction in which each improves. top5 needs more than five labels."""
    if target.kind != "classes":
        return dict(target.metrics)
    names = ("loss", "top1", "top5", "macro_f1", "mcc")
    return {
        name: "lower" if name == "loss" else "higher" for name in names if name != "top5" or len(target.labels) > TOP
    }
