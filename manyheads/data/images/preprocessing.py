"""Preprocessing of images for a model, and its settings in preprocessor_config.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.core.config import Config, Range
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject

MAX_SIDE = 10_000  # maximum image size in pixels; one image of this size takes 1.2 GB as float32
_RESAMPLE = {name: Image.Resampling[name.upper()] for name in ("nearest", "lanczos", "bilinear", "bicubic")}
# Mean, standard deviation and resampling filter that image processors of transformers use if the value in
# preprocessor_config.json is null.
_DEFAULTS: dict[str, tuple[float | tuple[float, ...], float | tuple[float, ...], int]] = {
    "ViT": (0.5, 0.5, 2), "DeiT": (0.5, 0.5, 3), "ConvNext": (0.5, 0.5, 3), "EfficientNet": (0.5, 0.5, 3),
    "Bit": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 3),
}  # fmt: skip
_FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class Preprocessing(Config):
    """Image preprocessing of a model: size, crop and normalization.

    A model directory stores it in preprocessor_config.json.

    size         height and width of the model's input, in pixels
    crop         size of the center crop, as a fraction of the shorter side of the image
    mean, std    mean and standard deviation of each channel for normalization, on a scale where white is 1
    resample     resampling filter for resizing
    channels     number of channels: 1 for grayscale, 3 for RGB
    squash       if True, resize the whole image to a square, ignoring its aspect ratio, as the ViT and DeiT processors
                 of transformers do. If False, keep the aspect ratio

    Raises UserError for values out of range.
    """

    size: Annotated[int, Range(1, MAX_SIDE)]
    crop: Annotated[float, Range(0, 1, above=True)] = 1.0
    mean: tuple[Annotated[float, Range(-100, 100)], ...] = (0.5, 0.5, 0.5)
    std: tuple[Annotated[float, Range(0, 100, above=True)], ...] = (0.5, 0.5, 0.5)
    resample: Literal["nearest", "lanczos", "bilinear", "bicubic"] = "bicubic"
    channels: Literal[1, 3] = 3
    squash: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.mean) == len(self.std) == self.channels:
            raise UserError(
                f"expected mean and std with {self.channels} values each, found mean {self.mean}, std {self.std}"
            )
        if self.size / self.crop > MAX_SIDE:
            fault = f"the shorter side would be resized to more than {MAX_SIDE:,} pixels"
            raise UserError(f"crop is {self.crop}: {fault}; expected a larger fraction")

    @classmethod
    def of_channels(
        cls, size: int, channels: int, *, mean: Sequence[float], std: Sequence[float], **others: Any
    ) -> Preprocessing:
        """Create a preprocessing for images with a given number of channels.

        mean, std  one value for each channel, or a sequence of one value for all channels
        """
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
        """Mean and standard deviation of the channels, (C, 1, 1), on a scale where white is 255."""
        mean, std = (np.array(v, dtype=np.float32).reshape(-1, 1, 1) * np.float32(255) for v in (self.mean, self.std))
        return mean, std

    @property
    def resized_side(self) -> int:
        """Length in pixels of the shorter side after resizing, before the center crop."""
        return int(self.size / self.crop + 1e-6)

    def framed(self, image: Image.Image) -> Image.Image:
        """Resize and crop an image to (size, size).

        Only the part inside the crop is resized, so that an image with an extreme aspect ratio (20,000 x 1
        pixels) does not exhaust memory.
        """
        image = image if image.mode == self.mode else image.convert(self.mode)
        (width, height), resized_side, size = image.size, self.resized_side, self.size
        short = min(width, height)
        wide, high = (
            (resized_side, resized_side)
            if self.squash
            else (int(resized_side * width / short), int(resized_side * height / short))
        )
        left, top = (wide - size) // 2, (high - size) // 2
        if (wide, high) == (width, height) == (size, size):
            return image
        if (wide, high) == (width, height):
            return image.crop((left, top, left + size, top + size))
        across, down = width / wide, height / high
        right, bottom = min((left + size) * across, width), min((top + size) * down, height)
        return image.resize((size, size), self.filter, box=(left * across, top * down, right, bottom))

    def normalized(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the normalized pixels (C, Y, X) of an image that `framed` has resized and cropped."""
        mean, std = self._statistics
        pixels = np.asarray(image).reshape(self.size, self.size, self.channels).transpose(2, 0, 1)
        normalized = np.empty(pixels.shape, dtype=np.float32)
        np.subtract(pixels, mean, out=normalized)
        return np.divide(normalized, std, out=normalized)

    def array(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the model input for an image as a NumPy array (C, Y, X).

        `torch.from_numpy` converts it to a tensor.
        """
        return self.normalized(self.framed(image))

    def as_dict(self) -> JsonObject:
        """Return the content of preprocessor_config.json that makes transformers preprocess images in the same way."""
        resized_side, size = self.resized_side, {"height": self.size, "width": self.size}
        cropped = {"do_center_crop": True, "crop_size": size} if resized_side > self.size or not self.squash else {}
        name = ("DeiTImageProcessor" if cropped else "ViTImageProcessor") if self.squash else "BitImageProcessor"
        return {
            "image_processor_type": name, "do_resize": True, "resample": int(self.filter),
            "size": {"height": resized_side, "width": resized_side} if self.squash else {"shortest_edge": resized_side},
            **cropped,
            "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": list(self.mean),
            "image_std": list(self.std), "do_convert_rgb": self.channels == 3,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, settings: JsonMapping, channels: int = 3) -> Preprocessing:
        """Create a preprocessing from the preprocessor_config.json of ViT, DeiT, ResNet, ConvNext or a similar model.

        settings  content of the file. A mean or std of one number applies to all channels. A value null means the
                  default of the image processor class that the file names
        channels  number of channels if mean and std are single numbers

        Raises UserError for settings that are not supported.
        """

        def side(value: object) -> int:
            sides = set(value.values()) if isinstance(value, Mapping) else {value}
            if len(sides) != 1 or type(pixels := sides.pop()) is not int:
                raise UserError(f"{_FILE}: the size {value} is not a square; only squares are supported")
            if not 1 <= pixels <= MAX_SIDE:
                raise UserError(f"{_FILE}: expected a size of 1 to {MAX_SIDE:,} pixels, found {value}")
            return pixels

        kind = str(settings.get("image_processor_type") or settings.get("feature_extractor_type"))
        defaults = zip(
            ("image_mean", "image_std", "resample"), _DEFAULTS.get(re.split("Image|Feature", kind)[0], ()), strict=False
        )
        given = {name: value for name, value in settings.items() if value is not None}
        settings = {"rescale_factor": 1 / 255, "resample": 2, **dict(defaults), **given}
        try:
            resized_side = side(settings["size"])
            squash = not (isinstance(settings["size"], Mapping) and "shortest_edge" in settings["size"])
            size = side(settings["crop_size"]) if settings.get("do_center_crop") else resized_side
            if "crop_pct" in settings:  # For ConvNext and ResNet, `size` in the file is the size after the crop.
                squash = resized_side >= 384
                resized_side = (
                    resized_side if squash or not settings["crop_pct"] else int(resized_side / settings["crop_pct"])
                )
            resample = {int(value): name for name, value in _RESAMPLE.items()}[settings["resample"]]
            normalize = settings.get("do_normalize", True)
            mean = settings["image_mean"] if normalize else 0.0
            std = settings["image_std"] if normalize else 1.0
        except KeyError as error:
            raise UserError(f"{_FILE}: {error} is missing, or is an unsupported resampling filter") from None
        factor = settings["rescale_factor"] if settings.get("do_rescale", True) else 1
        if not 0 < factor < math.inf:
            raise UserError(f"{_FILE}: rescale_factor is {factor}; expected a number above 0, such as 1/255")
        # Value of a white pixel before normalization according to the file. In Manyheads, this value is 1, so the mean
        # and std of the file are divided by it.
        white = 255 * factor
        # The processor of EfficientNet divides by std twice if the model has a classifier. It may also subtract 1.
        twice = settings.get("include_top", kind.startswith("EfficientNet"))
        mean, std, again = (
            [values] * channels if isinstance(values, int | float) else values
            for values in (mean, std, settings["image_std"] if twice else 1.0)
        )
        mean = tuple((value + bool(settings.get("rescale_offset"))) / white for value in mean)
        std = tuple(value * more / white for value, more in zip(std, again, strict=True))
        return cls(size, size / resized_side, mean, std, resample, len(mean), squash)  # type: ignore[arg-type]
