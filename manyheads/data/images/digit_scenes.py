"""Scenes of handwritten digits, the built-in data for object detection.

A scene is a gray image of 128 x 128 pixels with one to six digits of 12 to 40 pixels, which may overlap. The digits are
scikit-learn's, in their fixed splits: no digit of a held-out scene occurs in a training scene.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.checking import check_pixels
from manyheads.data.images.labeled_images import ImageData, digits
from manyheads.data.images.objects import ObjectData, Scene
from manyheads.data.readers.splits import SplitData

SIDE = 128  # height and width of a scene in pixels
MOST_DIGITS, SMALLEST, LARGEST = 6, 12, 40  # number of digits in a scene, and their heights in pixels
VALIDATION, TEST = 200, 200  # number of held-out scenes
MAX_OVERLAP = 0.4  # a digit covers at most this fraction of the box of an earlier digit, or is covered by this fraction


def digit_scenes(train: int, seed: int = 0) -> SplitData[ObjectData]:
    """Return scenes for training, validation and test.

    train  number of training scenes
    seed   seed of the training and validation scenes; the test scenes are always the same
    """
    of = digits(seed)
    assert of.validation is not None
    assert of.test is not None
    return SplitData(
        _scenes(of.train, train, [seed, 0]), _scenes(of.validation, VALIDATION, [seed, 1]), _scenes(of.test, TEST, [2])
    )


def _scenes(of: ImageData, count: int, seed: list[int]) -> ObjectData:
    """Return scenes of the given digits."""
    random = np.random.default_rng(seed)
    cut = [_cut(np.asarray(of.image(index))) for index in range(len(of))]
    return ObjectData([_scene(cut, of.labels, random) for _ in range(count)], of.names)


def _cut(pixels: NDArray[np.uint8]) -> Image.Image:
    """Return the part of an image that contains ink, so that the box of a digit is tight."""
    rows, columns = (np.flatnonzero((pixels > 40).any(axis)) for axis in (1, 0))
    return Image.fromarray(pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


def _scene(cut: list[Image.Image], labels: list[str], random: np.random.Generator) -> Scene:
    canvas = random.integers(0, 40, (SIDE, SIDE)).astype(np.uint8)  # dark noise
    boxes, names = np.empty((0, 4), dtype=np.float32), list[str]()
    wanted = int(random.integers(1, MOST_DIGITS + 1))
    while len(names) < wanted:
        index, height = int(random.integers(len(cut))), int(random.integers(SMALLEST, LARGEST + 1))
        width = max(round(height * cut[index].width / cut[index].height), SMALLEST // 2)
        left, top = (int(random.integers(SIDE - length + 1)) for length in (width, height))
        box = np.array([left, top, left + width, top + height], dtype=np.float32)
        if _overlap(boxes, box) > MAX_OVERLAP:
            continue
        digit = np.asarray(cut[index].resize((width, height), Image.Resampling.BICUBIC))
        part = canvas[top : top + height, left : left + width]
        np.maximum(part, digit, out=part)
        boxes, names = np.vstack([boxes, box]), [*names, labels[index]]
    return Scene(canvas, boxes, tuple(names), check_pixels(canvas, "L").key, (SIDE, SIDE))


def _overlap(boxes: NDArray[np.float32], box: NDArray[np.float32]) -> float:
    """Return the largest fraction of a box that another box covers."""
    if not len(boxes):
        return 0.0
    sides = np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2])
    areas = np.append((boxes[:, 2:] - boxes[:, :2]).prod(1), (box[2:] - box[:2]).prod())
    return float((sides.clip(0).prod(1) / np.minimum(areas[:-1], areas[-1])).max())
