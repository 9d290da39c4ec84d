"""Colors of an iGPT: images as sequences of color ids, and the search for the colors (Chen 2020, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject

ROUNDS = 30  # number of rounds of k-means
MAX_PIXELS = 2**17  # maximum number of pixels, drawn at random, whose clusters k-means searches
CHUNK = 2**14  # number of pixels whose distances to all colors are computed at once
MISSING = (86, 120, 160)  # color of pixels without an id, a blue


@dataclass(frozen=True, eq=False)
class Palette:
    """Colors and preprocessing of an iGPT. A model directory stores both in preprocessor_config.json.

    colors         (K, 3) red, green and blue of each color, after normalization
    preprocessing  size and normalization of the images, which are squeezed to squares
    """

    colors: NDArray[np.float32]
    preprocessing: Preprocessing

    @classmethod
    def learned(cls, images: Sequence[Image.Image], size: int, count: int, seed: int) -> Palette:
        """Return at most `count` colors, found by k-means in images that are reduced to `size` x `size` pixels."""
        preprocessing = Preprocessing(size, resample="bilinear", squash=True)
        pixels = np.concatenate([_pixels(preprocessing, image) for image in images])
        return cls(k_means(pixels, count, np.random.default_rng(seed)), preprocessing)

    def array(self, image: Image.Image) -> NDArray[np.int64]:
        """Return the ids of the nearest colors of an image, (N,), row by row."""
        return self.normalized(self.framed(image))

    def framed(self, image: Image.Image) -> Image.Image:
        """Reduce an image to the size of the model, as `Preprocessing.framed` does."""
        return self.preprocessing.framed(image)

    def normalized(self, image: Image.Image) -> NDArray[np.int64]:
        """Return the ids of the nearest colors of an image that has the size of the model, (N,)."""
        return nearest(_pixels(self.preprocessing, image), self.colors)

    def picture(self, ids: NDArray[np.int64]) -> Image.Image:
        """Return the image with the given color ids (N,). Blue pixels follow if the ids end early."""
        side = self.preprocessing.size
        pixels = np.full((side * side, 3), MISSING, dtype=np.uint8)
        mean, std = (np.array(values) for values in (self.preprocessing.mean, self.preprocessing.std))
        pixels[: len(ids)] = np.rint(255 * (self.colors[ids] * std + mean)).clip(0, 255)
        return Image.fromarray(pixels.reshape(side, side, 3))

    def as_dict(self) -> JsonObject:
        """Return the content of preprocessor_config.json, as ImageGPTImageProcessor of transformers reads it."""
        added = {"image_processor_type": "ImageGPTImageProcessor", "do_color_quantize": True}
        return {**self.preprocessing.as_dict(), **added, "clusters": self.colors.tolist()}

    @classmethod
    def from_dict(cls, settings: JsonMapping) -> Palette:
        """Create a palette from the content of preprocessor_config.json. Raises UserError if it has no colors."""
        colors = np.array(settings.get("clusters"), dtype=np.float32)
        if colors.ndim != 2 or colors.shape[1] != 3 or not np.isfinite(colors).all():
            raise UserError("preprocessor_config.json: expected 'clusters', a list of colors with 3 numbers each")
        return cls(colors, Preprocessing.from_dict({"image_mean": 0.5, "image_std": 0.5, **settings}))


def _pixels(preprocessing: Preprocessing, image: Image.Image) -> NDArray[np.float32]:
    """Return the normalized pixels of an image, (N, 3)."""
    return preprocessing.array(image).reshape(3, -1).T


def nearest(pixels: NDArray[np.float32], colors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of the nearest color for each pixel (N, 3), (N,)."""
    squares = (colors**2).sum(1)
    parts = (pixels[start : start + CHUNK] for start in range(0, len(pixels), CHUNK))
    return np.concatenate([(squares - 2 * part @ colors.T).argmin(1) for part in parts])


def k_means(pixels: NDArray[np.float32], count: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Return the centers of `count` clusters of pixels (N, 3), by Lloyd's algorithm from random pixels.

    If there are at most `count` distinct pixels, these are the centers.
    """
    sample = random.choice(pixels, min(len(pixels), MAX_PIXELS), replace=False)
    points, weights = np.unique(sample, axis=0, return_counts=True)
    if len(points) <= count:
        return points
    centers = random.choice(points, count, replace=False)
    for _ in range(ROUNDS):
        members = nearest(points, centers)
        sizes = np.bincount(members, weights, count)
        sums = np.stack([np.bincount(members, weights * channel, count) for channel in points.T], 1)
        full = sizes > 0
        centers[full] = sums[full] / sizes[full, None]
    return centers[np.lexsort(centers.T)]
