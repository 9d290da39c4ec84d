"""Predictor for object detection: labels and boxes of the objects in images, and average precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from manyheads import directory
from manyheads.analysis.maps import AttentionMaps, MapOptions
from manyheads.analysis.maps.sides import SPECIAL, Side
from manyheads.calls import checked_methods, shown
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.object_preprocessing import MEAN, STD, ObjectPreprocessing, padded
from manyheads.data.images.object_source import ObjectSource
from manyheads.data.images.objects import ObjectData
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.models.detr import Detr
from manyheads.tasks.detection.detected import Detected, detected
from manyheads.tasks.detection.metrics import average_precision, precision_by_label
from manyheads.tasks.detection.objective import tensors
from manyheads.tasks.evaluation import EvaluationResult, scored_data
from manyheads.tasks.images.loading import FILES, ImageInput, Images, compute_images, open_plain
from manyheads.tasks.inputs import rows_of
from manyheads.tasks.predictor import TrainedModel
from manyheads.training.distributed_map import distributed_map
from manyheads.training.record import Metrics

Pixels = NDArray[np.float32]
BATCH = 8  # number of images that are computed together
THRESHOLD = 0.5  # default minimum score of a detected object


class FoundObject(NamedTuple):
    """Object in an image, with its box in pixels of the upright original image.

    query  index of the object query that found it
    """

    label: str
    score: float
    left: float
    top: float
    right: float
    bottom: float
    query: int


@dataclass(frozen=True, repr=False)
class DetectionEvaluation(EvaluationResult):
    """Result of a detector on test data. The quality of an image is the F1 score of its objects with an IoU of 0.5."""

    labels: tuple[str, ...] = field(kw_only=True)
    found: list[Detected] = field(kw_only=True)

    def by_label(self) -> list[JsonObject]:
        """Return the number of objects, AP and AP50 of each label."""
        assert isinstance(self.data, ObjectData)
        return precision_by_label(self.data, self.labels, self.found)


@checked_methods
class Detector(TrainedModel[Detr]):
    """Detector of objects in images, as returned by `manyheads.load`."""

    verbs: ClassVar[tuple[str, ...]] = ("detect", "attend", "evaluate")
    reads: ClassVar = "images"
    reports = ("by_label",)
    has_channel_weights: ClassVar = False  # as of other predictors that read images

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        self.preprocessing = preprocessing_of(loaded)

    @overload
    def detect(self, images: ImageInput, *, threshold: float = THRESHOLD) -> list[FoundObject]: ...
    @overload
    def detect(
        self, images: Images, *, threshold: float = THRESHOLD, faults: dict[int, str] | None = None
    ) -> list[list[FoundObject]]: ...
    def detect(
        self, images: ImageInput | Images, *, threshold: float = THRESHOLD, faults: dict[int, str] | None = None
    ) -> list[FoundObject] | list[list[FoundObject]]:
        """Return the objects in every image, highest score first. Images are given as files or Pillow images.

        threshold  minimum score of an object
        faults     dictionary to which an error message is added for each image that cannot be read, by image index. The
                   result then has no objects for this image. By default, such an image raises UserError

            >>> [found.label for found in detector.detect("scene.png", threshold=0.0)][:1]
            ['dot']
        """
        if not 0 <= threshold <= 1:
            raise UserError(f"threshold is {threshold!r}: expected 0 to 1")
        items, single = rows_of(images, "image", FILES)

        def read(image: Image.Image) -> tuple[Pixels, tuple[int, int]]:
            return self.preprocessing.array(image), image.size

        def compute(opened: list[tuple[Pixels, tuple[int, int]]]) -> list[list[FoundObject]]:
            arrays, sizes = zip(*opened, strict=True)
            return self.detect_arrays(arrays, sizes, threshold=threshold)

        found = compute_images(items, BATCH, read, compute, faults)
        rows = [found.get(index, []) for index in range(len(items))]
        return rows[0] if single else rows

    def detect_arrays(
        self, arrays: Sequence[Pixels], sizes: Sequence[tuple[int, int]], *, threshold: float = THRESHOLD
    ) -> list[list[FoundObject]]:
        """Return the objects in every preprocessed image (C, Y, X), as `detect` does.

        sizes  width and height of each original image in pixels
        """
        arrays, found = list(arrays), list[Detected]()
        for index, array in enumerate(arrays):
            if not isinstance(array, np.ndarray) or array.ndim != 3 or len(array) != self.model.config.channels:
                raise ItemError(index, f"is {shown(array)}: expected pixels (C, Y, X)", f"image {index + 1}")
        if len(sizes) != len(arrays) or not all(isinstance(size, tuple) and len(size) == 2 for size in sizes):
            raise UserError(f"sizes is {shown(sizes)}: expected (width, height) of each image")
        for first in range(0, len(arrays), BATCH):
            found += self._detected(arrays[first : first + BATCH])
        return [self._objects(objects, size, threshold) for objects, size in zip(found, sizes, strict=True)]

    def attend(
        self, image: str | Path | Image.Image, *, threshold: float = THRESHOLD, layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None, axis: str | None = None,
    ) -> AttentionMaps:  # fmt: skip
        """Return the attention weights of every head in every layer for an image.

        The axis "cross" shows where the query of each found object looks, or all queries if no object is found.

        threshold      minimum score of an object
        layers, heads  indices of the layers and heads to return. By default, all are returned

            >>> detector.attend("scene.png", layers=[0])["cross"][0].keys.grid
            (8, 8)
        """
        plain = open_plain(image)
        found = self.detect(plain, threshold=threshold)
        array = self.preprocessing.array(plain)
        grid, cover = self._grid(array.shape[1], array.shape[2])
        cells, every = Side.patches(grid, cover=cover), Side.positions(self.model.config.queries)
        names = {each.query: f"{each.label} {each.score:.2f}" for each in found}
        objects = replace(every, tokens=tuple(names.get(query, token) for query, token in enumerate(every.tokens)))
        sides = {"encoder": (cells, cells), "decoder": (objects, objects), "cross": (objects, cells)}
        title = "an image" if isinstance(image, Image.Image) else Path(image).name
        picture = np.asarray(plain.resize((array.shape[2], array.shape[1])), dtype=np.uint8)
        maps = self._attention_maps(
            [torch.from_numpy(array)[None]], sides, title, MapOptions(axis, layers, heads), picture=picture
        )
        if "cross" not in maps.axes:
            return maps
        kept = [each.query for each in found] or list(range(len(objects)))
        # Like the class token of a ViT, the objects are tokens before a grid, here an empty one.
        queries = Side(objects.part(kept).tokens, (SPECIAL,) * len(kept), grid=(0, 0))
        rows = [replace(layer, weights=layer.weights[:, :, kept], queries=queries) for layer in maps["cross"]]
        return replace(maps, axes={"cross": rows, **{name: maps[name] for name in maps if name != "cross"}})

    def _grid(self, height: int, width: int) -> tuple[tuple[int, int], tuple[float, float]]:
        """Return the number of rows and columns of cells of an image, and the fraction of the image that they cover."""
        stride = self.model.config.stride
        rows, columns = (-(-side // stride) for side in (height, width))
        return (rows, columns), (rows * stride / height, columns * stride / width)

    def evaluate(self, data: object = None) -> EvaluationResult:
        """Detect the objects in the images of a data set, and compare them with the annotations.

        data  an `ObjectData`, or data that the method `outcome` accepts
        """
        if not isinstance(data, ObjectData):
            return self.outcome(data)
        found: list[Detected] = []

        def run(first: int) -> list[Detected]:
            return self._detected([self.preprocessing.array(s.image()) for s in data.scenes[first : first + BATCH]])

        for group in distributed_map(range(0, len(data), BATCH), run):
            found += group
        signature = f"{data.objects:,} objects in {len(data):,} images, pycocotools"
        scores = average_precision(data, self.model.labels, found)
        metrics: Metrics = {name: {"value": value, "signature": signature} for name, value in scores.items()}
        outputs = [self._objects(image, scene.size, THRESHOLD) for image, scene in zip(found, data.scenes, strict=True)]
        truths = [
            [_object(label, 1.0, box, -1) for label, box in zip(scene.labels, scene.boxes.tolist(), strict=True)]
            for scene in data.scenes
        ]
        quality = [f1_of(output, truth) for output, truth in zip(outputs, truths, strict=True)]
        texts = [[", ".join(sorted(o.label for o in image)) for image in side] for side in (outputs, truths)]
        places = [data.place(index) for index in range(len(data))]
        return DetectionEvaluation(
            places, texts[0], texts[1], quality, metrics, labels=self.model.labels, found=found, unit="F1 of an image",
            data=data,
        )  # fmt: skip

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the model on the test data of its training run, or on other data.

        data  a COCO file, a folder of images with labels in the format of YOLO, or a directory with a test split
        """
        labels = self.model.labels
        return self.evaluate(scored_data(self.path, data, ObjectSource(), skip_bad_lines=skip_bad_lines, labels=labels))

    def _detected(self, arrays: Sequence[Pixels]) -> list[Detected]:
        """Return the predictions for preprocessed images (C, Y, X)."""
        model = self.compiled
        with torch.inference_mode(), model.compute.autocast():
            return detected(model(*tensors(padded(arrays), model.compute)))

    def _objects(self, found: Detected, size: tuple[int, int], threshold: float) -> list[FoundObject]:
        edges = found.boxes * np.array([*size, *size], dtype=np.float32)
        rows = zip(found.labels, found.scores.tolist(), edges.tolist(), found.queries.tolist(), strict=True)
        return [
            _object(self.model.labels[label], score, box, query)
            for label, score, box, query in rows
            if score >= threshold
        ]


def _object(label: str, score: float, box: Sequence[float], query: int) -> FoundObject:
    left, top, right, bottom = box
    return FoundObject(label, score, left, top, right, bottom, query)


def f1_of(found: Sequence[FoundObject], truth: Sequence[FoundObject]) -> float:
    """Return the F1 score of the objects found in an image; 1.0 if there are none, and none are found.

    A found object is right if an object with its label, which no better one has taken, has an IoU of at least 0.5.
    """
    left, right = list(truth), 0
    for each in found:
        best = max((other for other in left if other.label == each.label), key=lambda o: iou(each, o), default=None)
        if best is not None and iou(each, best) >= 0.5:
            left.remove(best)
            right += 1
    return 2 * right / (len(found) + len(truth)) if found or truth else 1.0


def iou(a: FoundObject, b: FoundObject) -> float:
    """Return the intersection over union of two boxes."""
    width, height = min(a.right, b.right) - max(a.left, b.left), min(a.bottom, b.bottom) - max(a.top, b.top)
    shared = max(width, 0.0) * max(height, 0.0)
    return shared / (sum((o.right - o.left) * (o.bottom - o.top) for o in (a, b)) - shared)


def preprocessing_of(loaded: directory.Loaded) -> ObjectPreprocessing:
    """Return the preprocessing of a detector's directory; without preprocessor_config.json, that of published DETRs."""
    config = loaded.model.config
    if loaded.preprocessing is None:
        gray = config.channels == 1
        return ObjectPreprocessing(800, 1333, MEAN[:1] if gray else MEAN, STD[:1] if gray else STD, config.channels)
    try:
        preprocessing = ObjectPreprocessing.from_dict(loaded.preprocessing)
    except (TypeError, KeyError) as error:
        raise UserError(f"{loaded.path}: preprocessor_config.json: {error}") from None
    if preprocessing.channels != config.channels:
        raise UserError(f"{loaded.path}: preprocessor_config.json is for {preprocessing.channels} channels, "
                        f"the model for {config.channels}: copy both from one model")  # fmt: skip
    return preprocessing
