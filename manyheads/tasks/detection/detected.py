"""Objects that a detector finds in an image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.models.detr import Detections
from manyheads.tasks.detection.set_loss import corners


class Detected(NamedTuple):
    """Predictions of all N object queries for an image, with the highest score first.

    scores  (N,) probability of the label
    labels  (N,) class index of the most probable label, other than "no object"
    boxes   (N, 4) left, top, right and bottom edge, as fractions of the image's sides
    queries (N,) index of the object query
    """

    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    boxes: NDArray[np.float32]
    queries: NDArray[np.int64]


def detected(found: Detections) -> list[Detected]:
    """Return the predictions (B, N, ...) of a detector for each image."""
    scores, labels = found.logits.float().softmax(-1)[..., :-1].max(-1)
    order = scores.argsort(stable=True, dim=-1, descending=True)
    boxes = corners(found.boxes.float()).clamp(0, 1).gather(1, order[..., None].expand(*order.shape, 4))
    parts = (scores.gather(1, order), labels.gather(1, order), boxes, order)
    return [Detected(*image) for image in zip(*(part.cpu().numpy() for part in parts), strict=True)]
