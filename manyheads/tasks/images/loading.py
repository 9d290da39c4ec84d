"""Images that the predictors accept, and their preprocessing for a loaded model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from PIL import Image

from manyheads import directory
from manyheads.core.config import Config
from manyheads.core.interface import ReadsImages
from manyheads.data.images.checking import open_image
from manyheads.data.images.decoding import plain_image
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError
from manyheads.models.adapt import adapt
from manyheads.models.vit import ViT
from manyheads.tasks.inputs import Column
from manyheads.training.distributed_map import distributed_map

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

# Upper limits for values in config.json. The image size cannot be checked against the shapes of the weights.
MAX_SIDE, MAX_PATCHES = 4096, 2**16
# types of an image, see `rows_of`
FILES = {str: "a file name", Path: "a path", bytes: "the bytes of a file", Image.Image: "a Pillow image"}
ImageInput = str | Path | bytes | Image.Image
Images = list[ImageInput] | list[str] | list[Path] | tuple[ImageInput, ...] | Iterator[ImageInput] | Column


def preprocessing_of(loaded: directory.Loaded) -> Preprocessing:
    """Return the image preprocessing of a model directory.

    If the directory has no preprocessor_config.json, images are scaled to the model's size, with mean and standard
    deviation 0.5, as for the published ViTs. A warning is logged, because other networks use other values.
    """
    config = loaded.model.config
    if loaded.preprocessing is not None:
        try:
            preprocessing = Preprocessing.from_dict(loaded.preprocessing, config.channels)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise UserError(f"{loaded.path}: {error}") from None
        if preprocessing.channels != config.channels:
            raise UserError(
                f"{loaded.path}: preprocessor_config.json is for {preprocessing.channels} channels, "
                f"the model for {config.channels}: copy both from one model"
            )
        return _check_size(preprocessing, loaded)
    logger.warning(
        f"{loaded.path}: found no preprocessor_config.json; using mean 0.5 and standard deviation 0.5 for all channels"
    )
    half = (0.5,) * config.channels
    return _check_size(Preprocessing(config.image_size, mean=half, std=half, channels=config.channels), loaded)


def _check_size(preprocessing: Preprocessing, loaded: directory.Loaded) -> Preprocessing:
    """Raise UserError if the model's images exceed the maximum size."""
    size, patch = preprocessing.size, loaded.model.config.patch if isinstance(loaded.model, ViT) else MAX_SIDE
    if size > MAX_SIDE or (size // patch) ** 2 > MAX_PATCHES:
        raise UserError(
            f"{loaded.path}: its images have {size:,} x {size:,} pixels: expected at most {MAX_SIDE:,} on a side, "
            f"and {MAX_PATCHES:,} patches. Copy config.json and preprocessor_config.json from one model."
        )
    return preprocessing


def resize_positions(model: ReadsImages[Config], size: int) -> ReadsImages[Config]:
    """Return a ViT with its position embeddings resized for images of `size` pixels.

    Models of other types are returned unchanged. DINOv2, for example, was pretrained on images of 518 pixels but is
    published with a preprocessing to 224 pixels.
    """
    if not isinstance(model, ViT) or model.config.image_size == size:
        return model
    logger.info(f"resizing position embeddings from images of {model.config.image_size} pixels to {size}")
    return adapt(model, image_size=size)[0]


def open_plain(image: ImageInput) -> Image.Image:
    """Convert an image file or a Pillow image to an upright image in RGB or grayscale."""
    if isinstance(image, Image.Image):
        return plain_image(image)
    return open_image(image)


def compute_images(
    items: Sequence[ImageInput], size: int, read: Callable[[Image.Image], R], compute: Callable[[list[R]], Iterable[T]],
    faults: dict[int, str] | None,
) -> dict[int, T]:  # fmt: skip
    """Return the result of every image by its index, computed in groups of `size` images.

    read     function from an opened image to the input of `compute`
    compute  function from the inputs of several images to their results
    faults   dictionary to which an error message is added for each image that cannot be read, by its index. The image
             then has no result. If None, such an image raises UserError
    """

    def run(first: int) -> tuple[dict[int, T], dict[int, str]]:
        inputs, errors = dict[int, R](), dict[int, str]()
        for index, image in enumerate(items[first : first + size], first):
            try:
                inputs[index] = read(open_plain(image))
            except UserError as error:
                if faults is None:
                    raise
                errors[index] = str(error)
        results = compute(list(inputs.values())) if inputs else []
        return dict(zip(inputs, results, strict=True)), errors

    found: dict[int, T] = {}
    for results, errors in distributed_map(range(0, len(items), size), run):
        found |= results
        if faults is not None:
            faults |= errors
    return found
