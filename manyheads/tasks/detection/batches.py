"""Batches of images with objects, for training a detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ImageOps

from manyheads.data.batching import Lazy
from manyheads.data.images.augmentation import epoch_order, item_random
from manyheads.data.images.object_preprocessing import ObjectPreprocessing, Padded, padded
from manyheads.data.images.objects import ObjectData
from manyheads.tasks.detection.set_loss import Objects


@dataclass(frozen=True)
class ObjectBatch:
    """Batch of images with their objects."""

    images: Padded
    objects: Objects

    @property
    def items(self) -> int:
        """Number of objects, over which the loss is summed, but at least 1."""
        return max(int(self.objects.valid.sum()), 1)


@dataclass(frozen=True)
class ObjectLoader:
    """Batches of images with objects, in an order that depends only on the seed and the epoch.

    flip  probability that an image is mirrored. If None, the images stay in the order of the data, for validation
    """

    data: ObjectData
    labels: Sequence[str]
    preprocessing: ObjectPreprocessing
    batch_items: int
    flip: float | None = None
    seed: int = 0

    def epoch(self, epoch: int = 0) -> Sequence[ObjectBatch]:
        """Return the batches of an epoch. A batch is made when it is accessed."""
        items = len(self.data)
        order = np.arange(items) if self.flip is None else epoch_order(items, self.seed, epoch)[:, 0]
        batches = np.array_split(order, -(-items // self.batch_items))
        return Lazy(batches, lambda rows: self._batch(rows, epoch))

    def _batch(self, rows: NDArray[np.int64], epoch: int) -> ObjectBatch:
        index = {label: number for number, label in enumerate(self.labels)}
        scenes = [self.data.scenes[row] for row in rows]
        most = max(max(len(scene.labels) for scene in scenes), 1)
        boxes, labels = np.zeros((len(rows), most, 4), dtype=np.float32), np.zeros((len(rows), most), dtype=np.int64)
        valid, arrays = np.zeros((len(rows), most), dtype=bool), []
        for i, (row, scene) in enumerate(zip(rows, scenes, strict=True)):
            image, found = scene.image(), relative(scene.boxes, scene.size)
            if self.flip and item_random(self.seed, epoch, int(row)).random() < self.flip:
                image = ImageOps.mirror(image)
                found[:, 0] = 1 - found[:, 0]
            arrays.append(self.preprocessing.array(image))
            boxes[i, : len(found)], labels[i, : len(found)] = found, [index[label] for label in scene.labels]
            valid[i, : len(found)] = True
        return ObjectBatch(padded(arrays), Objects(*map(torch.from_numpy, (boxes, labels, valid))))


def relative(boxes: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """Convert boxes (N, 4) from edges in pixels to center, width and height as fractions of (width, height)."""
    edges = boxes / np.array([*size, *size], dtype=np.float32)
    return np.concatenate([(edges[:, :2] + edges[:, 2:]) / 2, edges[:, 2:] - edges[:, :2]], 1)
