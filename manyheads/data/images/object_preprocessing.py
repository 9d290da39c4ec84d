"""Preprocessing of images for a detector, and its settings in preprocessor_config.json.

An image keeps its aspect ratio. Images of a batch are padded with zeros on the right and at the bottom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.core.config import Config, Range
from manyheads.data.images.preprocessing import MAX_SIDE
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject

_Side = Annotated[int, Range(1, MAX_SIDE)]


class Padded(NamedTuple):
    """Batch of images that are padded to the same size, (B, C, Y, X), and rows and columns without padding, (B, 2)."""

    images: NDArray[np.float32]
    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class ObjectPreprocessing(Config):
    """Image preprocessing of a detector. A model directory stores it in preprocessor_config.json.

    shortest, longest  lengths in pixels: an image is resized so that its shorter side is `shortest`, unless its longer
                       side would then exceed `longest`
    mean, std          mean and standard deviation of each channel for normalization, on a scale where white is 1
    channels           number of channels: 1 for grayscale, 3 for RGB
    """

    shortest: _Side
    longest: _Side
    mean: tuple[Annotated[float, Range(-100, 100)], ...]
    std: tuple[Annotated[float, Range(0, 100, above=True)], ...]
    channels: Literal[1, 3] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.mean) == len(self.std) == self.channels:
            raise UserError(f"expected {self.channels} values of mean and std, found {self.mean} and {self.std}")

    def size_of(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height in pixels after resizing, rounded as in transformers."""
        short, long = sorted((width, height))
        exact = min(float(self.shortest), self.longest * short / long)
        side = max(round(exact), 1)
        if side == short:
            return width, height
        other = max(int(exact * long / short), 1)
        return (side, other) if width < height else (other, side)

    def array(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the normalized pixels (C, Y, X) of an image after resizing."""
        return self.normalized(self.framed(image))

    def framed(self, image: Image.Image) -> Image.Image:
        """Return an image in the model's mode and size."""
        image = image.convert("L" if self.channels == 1 else "RGB")
        size = self.size_of(*image.size)
        return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)

    def normalized(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the normalized pixels (C, Y, X) of an image in the model's mode and size."""
        pixels = np.asarray(image, dtype=np.float32).reshape(image.height, image.width, -1).transpose(2, 0, 1)
        mean, std = (
            np.array(each, dtype=np.float32)[:, None, None] * np.float32(255) for each in (self.mean, self.std)
        )
        normalized: NDArray[np.float32] = (pixels - mean) / std
        return normalized

    def as_dict(self) -> JsonObject:
        """Return the content of preprocessor_config.json that makes transformers preprocess images in the same way."""
        return {
            "image_processor_type": "DetrImageProcessor", "do_resize": True, "do_pad": True, "resample": 2,
            "size": {"shortest_edge": self.shortest, "longest_edge": self.longest}, "do_rescale": True,
            "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(self.mean),
            "image_std": list(self.std), "format": "coco_detection",
        }  # fmt: skip

    @classmethod
    def from_dict(cls, settings: JsonMapping) -> ObjectPreprocessing:
        """Create a preprocessing from the preprocessor_config.json of a DETR. Raises UserError for other settings."""
        size = settings.get("size", 800)
        if isinstance(size, int):  # as in files of earlier versions, with `max_size`
            size = {"shortest_edge": size, "longest_edge": settings.get("max_size", 1333)}
        fixed = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255, "resample": 2}
        if wrong := [name for name, value in fixed.items() if settings.get(name) not in (None, value)]:
            raise UserError(f"preprocessor_config.json: {', '.join(wrong)} cannot be represented")
        if not isinstance(size, dict) or size.keys() != {"shortest_edge", "longest_edge"}:
            raise UserError(f"preprocessor_config.json: the size is {size}; expected shortest_edge and longest_edge")
        mean, std = (tuple(settings.get(name, values)) for name, values in (("image_mean", MEAN), ("image_std", STD)))
        return cls(size["shortest_edge"], size["longest_edge"], mean, std, 1 if len(mean) == 1 else 3)


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet; published backbones were trained with them


def padded(arrays: Sequence[NDArray[np.float32]]) -> Padded:
    """Return preprocessed images (C, Y, X) as a batch, padded to the largest height and width."""
    sizes = np.array([array.shape[1:] for array in arrays], dtype=np.int64)
    images = np.zeros((len(arrays), len(arrays[0]), *sizes.max(0)), dtype=np.float32)
    for image, array in zip(images, arrays, strict=True):
        image[:, : array.shape[1], : array.shape[2]] = array
    return Padded(images, sizes)
