"""Images for a figure of channel weights, in groups: one group for each class, or one for each image file.

A group of images is one row of the figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.data.images.checking import open_image
from manyheads.data.images.files import PICTURES
from manyheads.data.images.labeled_images import read_images
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.source import ImageSource
from manyheads.errors import UserError
from manyheads.tasks.images.objective import EVALUATION_BATCH
from manyheads.tasks.images.predictor import ImageEncoder

MAX_IMAGES = 1000  # default for the maximum number of images over which a mean is taken


class ImageRows(NamedTuple):
    """Preprocessed images in groups. Each group is one row of a figure.

    batches  batches of images, (B, C, Y, X) each
    names    name of each group: a class or a file
    row_of   index of the group of each image
    title    description of the images for the figure
    """

    batches: Iterator[Tensor]
    names: tuple[str, ...]
    row_of: list[int]
    title: str


def image_rows(encoder: ImageEncoder, inputs: Sequence[str], max_images: int = MAX_IMAGES) -> ImageRows:
    """Read image files, or a data set of images, for a figure.

    inputs      image files, each of which is a group; or a folder of class folders or a table of images, whose classes
                are the groups
    max_images  maximum number of images that are read from a data set. They are evenly spaced
    """
    if not inputs:
        raise UserError("found no images: give a folder of class folders, a table of images, or image files")
    source = Path(inputs[0])
    if len(inputs) > 1 or (source.is_file() and source.suffix.lower() in PICTURES):
        names = tuple(Path(name).name for name in inputs)
        arrays = (torch.from_numpy(encoder.preprocessing.array(open_image(name)))[None] for name in inputs)
        title = names[0] if len(names) == 1 else f"{len(names):,} images"
        return ImageRows(arrays, names, list(range(len(names))), title)
    data = read_images(ImageSource().test_in(inputs[0]))
    data = data.subset(evenly_spaced(len(data), max_images))
    present = tuple(name for name in data.names if name in set(data.labels))
    loader = ImageLoader(data, present, encoder.preprocessing, batch_items=EVALUATION_BATCH)
    batches = (torch.from_numpy(batch.images) for batch in loader.epoch())
    return ImageRows(batches, present, loader.labels.tolist(), f"{source.name}, {len(data):,} images")


def evenly_spaced(count: int, max_frames: int) -> list[int]:
    """Return at most `max_frames` evenly spaced indices from 0 to count - 1, including 0 and count - 1."""
    if count <= max_frames:
        return list(range(count))
    return [round(i * (count - 1) / max(max_frames - 1, 1)) for i in range(max_frames)]
