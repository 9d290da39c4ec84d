"""Training objective of object detection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.object_preprocessing import ObjectPreprocessing, Padded
from manyheads.data.images.objects import ObjectData
from manyheads.models.detr import Detections, Detr
from manyheads.tasks.detection.batches import ObjectBatch, ObjectLoader
from manyheads.tasks.detection.detected import Detected, detected
from manyheads.tasks.detection.metrics import average_precision
from manyheads.tasks.detection.set_loss import CELLS, GIOU, L1, Objects, cell_loss, set_loss
from manyheads.training.distributed_map import distributed_map
from manyheads.training.objective import Better, Loss


class DetectionObjective:
    """Training task for object detection with the loss of DETR, summed over the layers of the decoder.

    The loss of a batch is divided by its number of objects.

    flip  probability with which a training image is mirrored
    """

    unit: ClassVar = "objects"
    metrics: ClassVar[dict[str, Better]] = {"loss": "lower", "ap50": "higher", "ap": "higher"}

    def __init__(
        self, model: Detr, preprocessing: ObjectPreprocessing, train: ObjectData, validation: ObjectData, *,
        compute: ComputeConfig, batch_items: int, flip: float, seed: int,
    ) -> None:  # fmt: skip
        self.model, self.preprocessing, self.compute = model.to(compute.device), preprocessing, compute
        self._train = ObjectLoader(train, model.labels, preprocessing, batch_items, flip, seed)
        self._validation = ObjectLoader(validation, model.labels, preprocessing, batch_items)

    def batches(self, epoch: int) -> Sequence[ObjectBatch]:
        return self._train.epoch(epoch)

    def loss(self, batch: ObjectBatch) -> Loss:
        return self._compute(batch)[0]

    def _compute(self, batch: ObjectBatch) -> tuple[Loss, Detections]:
        """Return the loss of a batch, and the predictions of the last layer."""
        model, objects = self.model, Objects(*(part.to(self.compute.device) for part in batch.objects))
        decoded = model.decode(*tensors(batch.images, self.compute))
        found = model.predict(decoded.states)  # (layers, B, groups * N, ...)
        groups = decoded.states.shape[2] // model.config.queries
        parts = set_loss(Detections(*(part.unflatten(2, (groups, -1)).transpose(1, 2) for part in found)), objects)
        mean = parts.labels  # over queries; the other parts are sums over objects
        if model.training and model.cell_classifier is not None:
            mean = mean + CELLS * cell_loss(model.cell_classifier(decoded.memory), decoded.valid, objects)
        loss = Loss(mean * batch.items + L1 * parts.l1 + GIOU * parts.giou, batch.items)
        return loss, Detections(found.logits[-1], found.boxes[-1])

    def validate(self) -> dict[str, float]:
        batches, data = self._validation.epoch(), self._validation.data

        def run(batch: ObjectBatch) -> tuple[float, int, list[Detected]]:
            with torch.inference_mode(), self.compute.autocast():
                loss, found = self._compute(batch)
            return float(loss.total), loss.count, detected(found)

        results = list(distributed_map(batches, run))
        loss = sum(total for total, _, _ in results) / sum(count for _, count, _ in results)
        found = [each for _, _, group in results for each in group]
        scores = {"loss": loss, **average_precision(data, self.model.labels, found)}
        return {name: scores[name] for name in self.metrics}

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, preprocessing=self.preprocessing.as_dict())


def tensors(batch: Padded, compute: ComputeConfig) -> tuple[Tensor, Tensor | None]:
    """Return the inputs of a model for padded images. The sizes are None if no image is padded."""
    images, sizes = (torch.from_numpy(each).to(compute.device) for each in batch)
    return images, None if (sizes == sizes.new_tensor(images.shape[2:])).all() else sizes
