"""Functions that the worker threads run for a batch: a predictor's method, or the decoding of image files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.checking import open_image
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.service.batching import Items, Results, Run
from manyheads.tasks.loading import LoadedModel

Decoded = NDArray[np.uint8] | tuple[NDArray[np.uint8], tuple[int, int]]
MAX_PIXELS = 16_000_000  # maximum number of pixels in an image that a client sends


def run(predictor: LoadedModel, method: Callable[..., Results], **options: object) -> Callable[[Items], Results]:
    """Return a function that calls a method of a predictor for a batch of items and returns its results.

    The method gets a list of texts, two lists if the items are pairs, or the normalized pixels of images.

    options  further keyword arguments of the method
    """

    def results(items: Items) -> Results:
        columns = [*map(list, zip(*items, strict=True))] if isinstance(items[0], tuple) else [items]
        if isinstance(columns[0][0], np.ndarray):
            columns[0] = [predictor.preprocessing.normalized(Image.fromarray(pixels)) for pixels in columns[0]]
        return method(*columns, **options)

    return results


def image_decoder(predictor: LoadedModel) -> Run:
    """Return a function that decodes image files to arrays of pixels in the input size of a model.

    For a detector, the width and height of the original image follow each array.
    """
    sized = "detect" in predictor.verbs

    def pixels(items: list[bytes]) -> Sequence[Decoded]:
        # Decode the images one by one, so that only one of them is in memory at full size.
        found: list[Decoded] = []
        for index, item in enumerate(items):
            try:
                image = open_image(item, MAX_PIXELS)
                array = np.asarray(predictor.preprocessing.framed(image))
                found.append((array, image.size) if sized else array)
            except UserError as error:
                raise ItemError(index, str(error)) from None
        return found

    return pixels
