"""What a model expects of an image, as preprocessor_config.json says it, and how an image is made to be so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.core.config import Config, Range
from manyheads.errors import UserError

LARGEST_SIDE = 10_000  # pixels: one image of that size is 1.2 GB as float32
_RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class Preprocessing(Config):
    """What a model expects of an image; it belongs to its directory, as preprocessor_config.json.

    size         of the square that the model sees, in pixels
    crop         share of the shorter side that it shows, in the middle of the image
    mean, std    of each channel, subtracted and divided by, where white is 1
    resample     how images are resized
    channels     1: grey, 3: red, green and blue
    squash       bend the whole image into a square instead (as ViT's and DeiT's processors in transformers do)

    Raises UserError for values out of range.
    """

    size: Annotated[int, Range(1, LARGEST_SIDE)]
    crop: Annotated[float, Range(0, 1, above=True)] = 1.0
    mean: tuple[Annotated[float, Range(-100, 100)], ...] = (0.5, 0.5, 0.5)
    std: tuple[Annotated[float, Range(0, 100, above=True)], ...] = (0.5, 0.5, 0.5)
    resample: Literal["bilinear", "bicubic"] = "bicubic"
    channels: Literal[1, 3] = 3
    squash: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.mean) == len(self.std) == self.channels:
            raise UserError(
                f"channels {self.channels}, mean {self.mean}, std {self.std}: expected as many means and deviations"
            )
        if self.size / self.crop > LARGEST_SIDE:
            fault = f"the shorter side would be resized to more than {LARGEST_SIDE:,} pixels"
            raise UserError(f"crop is {self.crop}: {fault}; expected a larger share")

    @classmethod
    def of_channels(
        cls, size: int, channels: int, *, mean: Sequence[float], std: Sequence[float], **others: Any
    ) -> Preprocessing:
        """For so many channels; one number of `mean` or `std` serves all of them."""
        mean, std = (tuple(v) * channels if len(v) == 1 else tuple(v) for v in (mean, std))
        return cls(size, mean=mean, std=std, channels=channels, **others)  # type: ignore[arg-type]  # 1 or 3, or an error

    @property
    def mode(self) -> str:
        return "L" if self.channels == 1 else "RGB"

    @property
    def filter(self) -> Image.Resampling:
        return _RESAMPLE[self.resample]

    @cached_property
    def _statistics(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and deviation (C, 1, 1) in levels of 255."""
        mean, std = (np.array(v, dtype=np.float32).reshape(-1, 1, 1) * np.float32(255) for v in (self.mean, self.std))
        return mean, std

    @property
    def edge(self) -> int:
        """What the shorter side is resized to before the crop."""
        return int(self.size / self.crop + 1e-6)

    def framed(self, image: Image.Image) -> Image.Image:
        """The image resized and cropped to (size, size). Only what is seen is resized, so that an image of 20,000 x 1
        pixels does no harm."""
        image = image if image.mode == self.mode else image.convert(self.mode)
        (width, height), edge, size = image.size, self.edge, self.size
        short = min(width, height)
        wide, high = (edge, edge) if self.squash else (int(edge * width / short), int(edge * height / short))
        left, top = (wide - size) // 2, (high - size) // 2
        if (wide, high) == (width, height) == (size, size):
            return image
        if (wide, high) == (width, height):
            return image.crop((left, top, left + size, top + size))
        across, down = width / wide, height / high
        right, bottom = min((left + size) * across, width), min((top + size) * down, height)
        return image.resize((size, size), self.filter, box=(left * across, top * down, right, bottom))

    def normalized(self, image: Image.Image) -> NDArray[np.float32]:
        """(C, Y, X) of an image that is framed."""
        mean, std = self._statistics
        pixels = np.asarray(image).reshape(self.size, self.size, self.channels).transpose(2, 0, 1)
        normalized = np.empty(pixels.shape, dtype=np.float32)
        np.subtract(pixels, mean, out=normalized)
        return np.divide(normalized, std, out=normalized)

    def array(self, image: Image.Image) -> NDArray[np.float32]:
        """(C, Y, X): what the model is given of an image; `torch.from_numpy` makes it a tensor."""
        return self.normalized(self.framed(image))

    def as_dict(self) -> dict[str, Any]:
        """As preprocessor_config.json has it, so that transformers prepares images likewise."""
        edge, size = self.edge, {"height": self.size, "width": self.size}
        cropped = {"do_center_crop": True, "crop_size": size} if edge > self.size or not self.squash else {}
        name = ("DeiTImageProcessor" if cropped else "ViTImageProcessor") if self.squash else "BitImageProcessor"
        return {
            "image_processor_type": name, "do_resize": True, "resample": int(self.filter),
            "size": {"height": edge, "width": edge} if self.squash else {"shortest_edge": edge}, **cropped,
            "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(self.mean),
            "image_std": list(self.std), "do_convert_rgb": self.channels == 3,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Preprocessing:
        """From preprocessor_config.json of ViT, DeiT, ResNet, ConvNext and their like. Raises UserError."""

        def side(value: Any) -> int:
            sides = set(value.values()) if isinstance(value, Mapping) else {value}
            if len(sides) != 1 or type(pixels := sides.pop()) is not int:
                raise UserError(f"{_FILE}: the size {value} is no square; only squares are supported")
            if not 1 <= pixels <= LARGEST_SIDE:
                raise UserError(f"{_FILE}: the size {value}: expected 1 to {LARGEST_SIDE:,} pixels")
            return pixels

        try:
            edge = side(settings["size"])
            squash = not (isinstance(settings["size"], Mapping) and "shortest_edge" in settings["size"])
            size = side(settings["crop_size"]) if settings.get("do_center_crop") else edge
            if "crop_pct" in settings:  # ConvNext, ResNet: `size` is what is left after the crop
                squash = edge >= 384
                edge = edge if squash or not settings["crop_pct"] else int(edge / settings["crop_pct"])
            resample = {2: "bilinear", 3: "bicubic"}[settings.get("resample", 2)]
            normalize = settings.get("do_normalize", True)
            mean = settings["image_mean"] if normalize else (0.0, 0.0, 0.0)
            std = settings["image_std"] if normalize else (1.0, 1.0, 1.0)
        except KeyError as error:
            raise UserError(f"{_FILE}: {error} is missing, or is a resampling unknown here") from None
        factor = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1
        if not 0 < factor < math.inf:
            raise UserError(f"{_FILE}: rescale_factor is {factor}: expected a number above 0, such as 1/255")
        white = 255 * factor  # the white that the file's mean and std are meant for; here it is 1
        mean, std = (tuple(value / white for value in values) for values in (mean, std))
        return cls(size, size / edge, mean, std, resample, len(mean), squash)  # type: ignore[arg-type]
