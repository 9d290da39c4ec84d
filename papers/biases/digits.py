"""Test images that differ from the training images: the digits are moved or smaller (as in MNIST-C, Mu 2019)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from PIL import Image

from manyheads.data.images.labeled_images import ImageData

MOVED = 6  # maximum distance in pixels, in each direction
SMALLER = (0.4, 0.8)  # range of the factors of height and width


def changed_digits(images: ImageData, seed: int) -> dict[str, ImageData]:
    """Return the images with each digit moved by some pixels, and with each digit smaller."""
    chance = np.random.default_rng(seed)

    def moved(image: Image.Image) -> Image.Image:
        right, down = chance.integers(-MOVED, MOVED + 1, 2).tolist()
        return _pasted(image, image.size, right, down)

    def smaller(image: Image.Image) -> Image.Image:
        width, height = image.size
        factor = chance.uniform(*SMALLER)
        small = image.resize((round(width * factor), round(height * factor)), Image.Resampling.BICUBIC)
        return _pasted(small, image.size, (width - small.width) // 2, (height - small.height) // 2)

    return {name: _changed(images, change) for name, change in {"moved": moved, "smaller": smaller}.items()}


def _pasted(image: Image.Image, size: tuple[int, int], right: int, down: int) -> Image.Image:
    """Return a black image of a size (width, height) with the image at a position. Parts outside are cut off."""
    canvas = Image.new(image.mode, size)
    canvas.paste(image, (right, down))
    return canvas


def _changed(images: ImageData, change: Callable[[Image.Image], Image.Image]) -> ImageData:
    return replace(
        images,
        items=[item._replace(source=np.asarray(change(images.image(i)))) for i, item in enumerate(images.items)],
    )
