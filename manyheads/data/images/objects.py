"""Data set of images with objects. An object has a label and a box in pixels of the upright image."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.checking import open_image
from manyheads.data.readers.dataset import Dataset


class Scene(NamedTuple):
    """Image with its objects.

    source  image file, or pixels (Y, X) or (Y, X, 3)
    boxes   (N, 4) left, top, right and bottom edge of each object, in pixels
    labels  label of each object
    key     hash of the pixels
    size    (width, height) of the upright image
    place   location of the image, for messages
    number  number of the image in its annotation file (COCO), or from 1
    """

    source: Path | NDArray[np.uint8]
    boxes: NDArray[np.float32]
    labels: tuple[str, ...]
    key: str
    size: tuple[int, int]
    place: str = ""
    number: int = 0

    def image(self) -> Image.Image:
        """Return the upright image in mode L or RGB."""
        return open_image(self.source)


@dataclass(frozen=True, repr=False)
class ObjectData(Dataset):
    """Data set of images with objects. An image is decoded when it is accessed.

    names  labels in the order of class indices
    """

    columns: ClassVar[tuple[str, ...]] = ("scenes",)

    scenes: list[Scene]
    names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"ObjectData(images: {len(self):,}, objects: {self.objects:,}, labels: {len(self.names):,}, {self.file})"

    @property
    def objects(self) -> int:
        """Number of objects in all images."""
        return sum(len(scene.labels) for scene in self.scenes)

    def unknown(self, labels: Iterable[str]) -> list[str]:
        """Return the labels of objects that are not among the given ones, in sorted order."""
        return sorted({label for scene in self.scenes for label in scene.labels}.difference(labels))

    @property
    def keys(self) -> list[str]:
        return [scene.key for scene in self.scenes]

    def place(self, index: int) -> str:
        return self.scenes[index].place or f"image {index + 1:,}"
