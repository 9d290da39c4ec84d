"""Functions that the worker threads run for a batch: a predictor's method, or the decoding of image files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.checking import open_image
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.service.batching import Run
from manyheads.tasks.loading import LoadedModel

MAX_PIXELS = 16_000_000  # maximum number of pixels in an image that a client sends


def run(predictor: LoadedModel, verb: str, **options: Any) -> Run:
    """Return a function that runs a predictor's method on a batch of items."""

    def answers(items: list[tuple[str, str]]) -> Sequence[Any]:
        return predictor.answer([a for a, _ in items], [b for _, b in items], **options)

    def pairs(items: list[tuple[str, str]]) -> Sequence[Any]:
        return predictor.predictions([a for a, _ in items], [b for _, b in items], **options)

    def images(items: list[NDArray[np.uint8]]) -> Sequence[Any]:
        arrays = [predictor.preprocessing.normalized(Image.fromarray(pixels)) for pixels in items]
        return predictor.classify_arrays(arrays, **options)

    def image_vectors(items: list[NDArray[np.uint8]]) -> Sequence[Any]:
        return predictor.embed_arrays([predictor.preprocessing.normalized(Image.fromarray(p)) for p in items])

    def texts(items: list[str]) -> Sequence[Any]:  # with the names of labels, as JSON strings
        return predictor.predictions(items, **options)

    special: dict[str, Run] = {
        "answer": answers,
        "classify": texts,
        "pairs": pairs,
        "images": images,
        "image_vectors": image_vectors,
    }
    return special.get(verb) or (lambda items: getattr(predictor, verb)(items, **options))


def image_decoder(predictor: LoadedModel) -> Run:
    """Return a function that decodes image files to arrays of pixels in the input size of a model."""

    def pixels(items: list[bytes]) -> Sequence[NDArray[np.uint8]]:
        # The images are decoded one by one, so that only one of them is in memory at full size.
        found: list[NDArray[np.uint8]] = []
        for index, item in enumerate(items):
            try:
                found.append(np.asarray(predictor.preprocessing.framed(open_image(item, MAX_PIXELS))))
            except UserError as error:
                raise ItemError(index, str(error)) from None
        return found

    return pixels
