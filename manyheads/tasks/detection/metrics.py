"""Average precision of a detector, computed by pycocotools, the evaluator of COCO (Lin 2014)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from manyheads.data.images.objects import ObjectData
from manyheads.errors import extra
from manyheads.files import JsonObject
from manyheads.tasks.detection.detected import Detected

MAX_DETECTIONS = 100  # number of predictions of an image that count, as for COCO
# names of the first six of COCO's twelve numbers: over IoU .5 to .95, at .5, at .75, and by the size of the object in
# pixels of the original image: small below 32 x 32, medium below 96 x 96, large
NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")


def average_precision(data: ObjectData, labels: Sequence[str], found: Sequence[Detected]) -> dict[str, float]:
    """Return the average precision over all labels. A size without objects has no entry.

    found  predictions for each image of the data
    """
    stats = _evaluated(data, labels, found).stats
    return {name: float(value) for name, value in zip(NAMES, stats, strict=False) if value >= 0}


def precision_by_label(data: ObjectData, labels: Sequence[str], found: Sequence[Detected]) -> list[JsonObject]:
    """Return the number of objects, AP and AP50 of each label, as one dictionary per label."""
    # precision (T, R, K, A, M): IoU thresholds, recalls, labels, sizes, numbers of predictions
    precision = _evaluated(data, labels, found).eval["precision"][:, :, :, 0, -1]
    rows: list[JsonObject] = []
    for index, label in enumerate(labels):
        items = sum(scene.labels.count(label) for scene in data.scenes)
        # A label without objects has the value -1.
        rows.append(
            {"label": label, "items": items, "ap": float(precision[:, :, index].mean()),
             "ap50": float(precision[0, :, index].mean())}
        )  # fmt: skip
    return rows


def coco_results(data: ObjectData, found: Sequence[Detected]) -> list[JsonObject]:
    """Return the predictions in the format of COCO results, with label numbers from 1 and boxes in pixels."""
    rows = []
    for number, (scene, image) in enumerate(zip(data.scenes, found, strict=True), 1):
        edges = image.boxes * np.array([*scene.size] * 2)
        for score, label, (left, top, right, bottom) in zip(image.scores, image.labels, edges.tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            rows.append(
                {"image_id": scene.number or number, "category_id": int(label) + 1, "bbox": box, "score": float(score)}
            )
    return rows


def _evaluated(data: ObjectData, labels: Sequence[str], found: Sequence[Detected]) -> Any:
    """Return the evaluator of COCO after its evaluation."""
    with extra("vision", "average precision"):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    index = {label: number for number, label in enumerate(labels, 1)}
    annotations: list[JsonObject] = []
    for number, scene in enumerate(data.scenes, 1):
        for label, (left, top, right, bottom) in zip(scene.labels, scene.boxes.tolist(), strict=True):
            size = (right - left, bottom - top)
            annotations.append(
                {"id": len(annotations) + 1, "image_id": scene.number or number, "category_id": index[label],
                 "bbox": [left, top, *size], "area": size[0] * size[1], "iscrowd": 0}
            )  # fmt: skip
    truth = COCO()
    truth.dataset = {
        "info": {}, "annotations": annotations, "categories": [{"id": n, "name": name} for name, n in index.items()],
        "images": [{"id": scene.number or number} for number, scene in enumerate(data.scenes, 1)],
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):  # It prints its progress.
        truth.createIndex()
        rows = coco_results(data, found)
        evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
        evaluation.params.maxDets = [1, 10, MAX_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation
