"""Random image augmentation for training, as for DeiT (Touvron 2021, table 9). Each operation can be disabled.

The operations and their strengths are those of the library timm, which was used to train DeiT. Pillow performs the
operations on 8-bit pixels. Random numbers are seeded with (seed, epoch, item, copy) for operations on one image, and
with (seed, epoch, batch) for operations on a batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from manyheads.core.config import Config, Range, Rate
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError

# Part of a generator's seed: the purpose of the random numbers. Different purposes give independent random numbers.
_ORDER, _ITEM, _BATCH = 1, 2, 3


_Fraction = Annotated[float, Range(0, 1, above=True)]
_Strength = Annotated[float, Range(0, 100)]  # If the strength is 0, the operation is disabled.


@dataclass(frozen=True)
class Augmentation(Config):
    """Augmentation of training images. The operations are applied in the order listed; by default, all are disabled.

    crop           none, padded or resized. "resized": resize a random part with a fraction `scale` of the area and an
                   aspect ratio from 3/4 to 4/3 (Szegedy 2015); "padded": pad the image with `padding` black pixels,
                   then crop it at random (He 2015)
    padding        width of the black border of a padded crop, in pixels
    scale          minimum and maximum fraction of the area of a resized crop
    flip           probability of a horizontal flip
    jitter         color jitter: change brightness, contrast and saturation by up to this fraction, in random order
    randaugment    number of operations that are drawn from a list of 15 (Cubuk 2019). Each is applied with
                   probability 1/2. Its strength is random with mean `magnitude` (maximum 10) and standard deviation
                   `magnitude_std`
    magnitude      mean strength of the operations of RandAugment, from 0 to 10
    magnitude_std  standard deviation of the strength of the operations of RandAugment
    autoaugment    if True, apply one of the 25 pairs of operations that a search found for ImageNet (Cubuk 2018). Each
                   operation of a pair has its own probability and strength. It replaces RandAugment
    erasing        probability of replacing a random box (2% to a third of the image area) with noise (Zhong 2017)
    mixup          parameter alpha: blend two images with a weight from Beta(alpha, alpha) (Zhang 2017)
    cutmix         parameter alpha: paste a box of one image into another; the area of the box is drawn from
                   Beta(alpha, alpha) (Yun 2019)
    switch         probability of cutmix if both mixup and cutmix are enabled
    repeats        number of copies of each image in a batch, augmented independently. The length of an epoch does not
                   change, so an epoch uses only a part of the images (Hoffer 2019)
    """

    crop: Literal["none", "padded", "resized"] = "none"
    padding: Annotated[int, Range(0, 10_000)] = 4
    scale: tuple[_Fraction, _Fraction] = (0.08, 1.0)
    flip: Rate = 0.0
    jitter: Rate = 0.0
    randaugment: Annotated[int, Range(0, 100)] = 0
    magnitude: _Strength = 9.0
    magnitude_std: _Strength = 0.5
    autoaugment: bool = False
    erasing: Rate = 0.0
    mixup: _Strength = 0.0
    cutmix: _Strength = 0.0
    switch: Rate = 0.5
    repeats: Annotated[int, Range(1, 100)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale[0] > self.scale[1]:
            raise UserError(f"scale is {self.scale}; expected the minimum fraction of the area, then the maximum")
        if self.autoaugment and self.randaugment:
            raise UserError("autoaugment and randaugment: expected one of them; set randaugment to 0")

    @property
    def mixes(self) -> bool:
        """True if mixup or cutmix is enabled. Labels are then probabilities of several classes."""
        return self.mixup > 0 or self.cutmix > 0

    def image(self, image: Image.Image, preprocessing: Preprocessing, random: Generator) -> NDArray[np.float32]:
        """Augment one image. Return its normalized pixels, (C, Y, X)."""
        size = preprocessing.size
        if self.crop == "resized":
            box = resized_crop_box(*image.size, self.scale, random)
            image = image.convert(preprocessing.mode).resize((size, size), preprocessing.filter, box=box)
        else:
            image = preprocessing.framed(image)
        if self.crop == "padded":
            left, top = (int(at) for at in random.integers(0, 2 * self.padding + 1, 2) - self.padding)
            image = image.crop((left, top, left + size, top + size))  # Pixels outside the image are black.
        if random.random() < self.flip:
            image = ImageOps.mirror(image)
        if self.jitter:
            image = color_jitter(image, self.jitter, random)
        for _ in range(self.randaugment):
            operation = OPERATIONS[int(random.integers(len(OPERATIONS)))]
            if random.random() < 0.5:
                level = min(max(random.normal(self.magnitude, self.magnitude_std), 0.0), 10.0) / 10
                sign = -1.0 if random.random() < 0.5 else 1.0
                image = operation(image, level, sign, Fill.of(preprocessing))
        for name, probability, level in POLICIES[int(random.integers(len(POLICIES)))] if self.autoaugment else ():
            if random.random() < probability:
                sign = -1.0 if random.random() < 0.5 else 1.0
                image = POLICY_OPERATIONS[name](image, level, sign, Fill.of(preprocessing))
        pixels = preprocessing.normalized(image)
        if self.erasing and random.random() < self.erasing:
            erase(pixels, random)
        return pixels

    def batch(
        self,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        classes: int,
        random: Generator,
        others: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Apply mixup or cutmix to images (B, C, Y, X) and labels (B,). Return images and soft labels (B, L).

        The first image of the batch is combined with the last, the second with the second to last, and so on. All pairs
        have the same weight, as in timm.

        classes  number L of classes
        others   images and labels with which the given images are combined, if these are only a part of a batch
        """
        assert self.mixes
        other_images, other_labels = (images[::-1], labels[::-1]) if others is None else others
        cut = self.cutmix > 0 and (self.mixup == 0 or random.random() < self.switch)
        alpha = self.cutmix if cut else self.mixup
        # weight of each image in the mixture; the image with which it is combined has the weight 1 - weight
        weight = float(random.beta(alpha, alpha))
        if cut:
            rows, columns = cutmix_box(images.shape[2], images.shape[3], weight, random)
            mixed = images.copy()
            mixed[:, :, rows, columns] = other_images[:, :, rows, columns]
            weight = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / math.prod(images.shape[2:])
        else:
            mixed = images * np.float32(weight) + other_images * np.float32(1 - weight)
        one_hot = np.eye(classes, dtype=np.float32)
        return mixed, one_hot[labels] * np.float32(weight) + one_hot[other_labels] * np.float32(1 - weight)


# Default settings of DeiT's code. Its color jitter of 0.4 has no effect, because timm disables jitter if RandAugment is
# enabled; therefore jitter is 0 here.
DEIT = Augmentation(crop="resized", flip=0.5, randaugment=2, erasing=0.25, mixup=0.8, cutmix=1.0, repeats=3)
# DeiT's augmentation for small images of 32 x 32 pixels. They are padded and cropped at random instead of resized,
# because a crop of 8% of the area would contain only a few pixels.
DEIT_SMALL = replace(DEIT, crop="padded")
CLASSIC = Augmentation(crop="padded", flip=0.5)  # Augmentation for CIFAR-10 from He 2015, section 4.2.


def item_random(seed: int, epoch: int, item: int, repeat: int = 0) -> Generator:
    return _generator(_ITEM, seed, epoch, item, repeat)


def batch_random(seed: int, epoch: int, batch: int) -> Generator:
    return _generator(_BATCH, seed, epoch, batch)


def epoch_order(items: int, seed: int, epoch: int, repeats: int = 1) -> NDArray[np.int64]:
    """Return the order of images in one epoch as an array (items, 2): image indices, and indices of augmented copies.

    With repeated augmentation (`repeats` above 1), the copies of an image are adjacent. The array has `items` rows for
    any number of copies, so some images are left out.
    """
    order = _generator(_ORDER, seed, epoch).permutation(items)[: -(-items // repeats)]
    copies = np.stack([np.repeat(order, repeats), np.tile(np.arange(repeats), len(order))], axis=1)
    return copies[:items]


def _generator(*numbers: int) -> Generator:
    return Generator(np.random.Philox(np.random.SeedSequence(numbers)))


def resized_crop_box(
    width: int, height: int, scale: tuple[float, float], random: Generator
) -> tuple[int, int, int, int]:
    """Return the box (left, top, right, bottom) of a random crop, with random area and aspect ratio.

    If none of ten random boxes fits into the image, the box of a center crop is returned.

    scale  minimum and maximum fraction of the image area
    """
    for _ in range(10):
        wide, high = _sides(width * height, scale, 4 / 3, random)
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(random.integers(width - wide + 1)), int(random.integers(height - high + 1))
            return left, top, left + wide, top + high
    wide, high = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _sides(pixels: int, fractions: tuple[float, float], max_ratio: float, random: Generator) -> tuple[int, int]:
    """Return height and width of a random rectangle in an image.

    Its area is between the two `fractions` of the image area, its aspect ratio between 1 / `max_ratio` and
    `max_ratio`.
    """
    area = random.uniform(*fractions) * pixels
    proportion = math.exp(random.uniform(math.log(1 / max_ratio), math.log(max_ratio)))
    return round(math.sqrt(area * proportion)), round(math.sqrt(area / proportion))


def cutmix_box(height: int, width: int, weight: float, random: Generator) -> tuple[slice, slice]:
    """Return the rows and columns of a box with a random center. Its area is 1 - `weight` of the image area.

    The box is clipped at the borders of the image.
    """
    side = math.sqrt(1 - weight)
    spans = []
    for length in (height, width):
        cut, center = int(length * side), int(random.integers(length))
        spans.append(slice(max(center - cut // 2, 0), min(center + (cut + 1) // 2, length)))
    return spans[0], spans[1]


def erase(pixels: NDArray[np.float32], random: Generator) -> None:
    """Fill a random rectangle of an image (C, Y, X) with normal noise, in place."""
    channels, height, width = pixels.shape
    for _ in range(10):
        high, wide = _sides(height * width, (0.02, 1 / 3), 1 / 0.3, random)
        if high < height and wide < width:
            top, left = int(random.integers(height - high + 1)), int(random.integers(width - wide + 1))
            noise = random.standard_normal((channels, high, wide), dtype=np.float32)
            pixels[:, top : top + high, left : left + wide] = noise
            return


def color_jitter(image: Image.Image, strength: float, random: Generator) -> Image.Image:
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    factors = random.uniform(1 - strength, 1 + strength, 3)
    for kind in random.permutation(3):
        image = kinds[kind](image).enhance(float(factors[kind]))
    return image


class Fill(NamedTuple):
    """Settings of operations that move pixels: color of the pixels outside of the image, and resampling filter."""

    color: int | tuple[int, ...]
    filter: Image.Resampling

    @classmethod
    def of(cls, preprocessing: Preprocessing) -> Fill:
        mean = tuple(min(255, round(255 * value)) for value in preprocessing.mean)
        return cls(mean if len(mean) > 1 else mean[0], preprocessing.filter)


# function of (image, level from 0 to 1, sign, fill) that returns an image
Operation = Callable[[Image.Image, float, float, Fill], Image.Image]


def _affine(image: Image.Image, matrix: tuple[float, ...], fill: Fill) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=fill.filter, fillcolor=fill.color)


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, level, sign, fill: kind(image).enhance(max(0.1, 1 + sign * 0.9 * level))


def _posterize(image: Image.Image, level: float, sign: float, fill: Fill) -> Image.Image:
    # At the maximum level, timm requests 0 bits, which Pillow 13 rejects; here the minimum is 1 bit.
    return ImageOps.posterize(image, max(4 - int(4 * level), 1))


def _solarize_add(image: Image.Image, level: float, sign: float, fill: Fill) -> Image.Image:
    add = min(128, int(110 * level))
    return image.point(
        [min(255, value + add) if value < 128 else value for value in range(256)] * len(image.getbands())
    )


# The 15 operations of RandAugment, in the order of `rand-...-inc1` in timm. The strength of each operation increases
# with its level. The level is between 0 and 1, a tenth of the level in timm.
OPERATIONS: tuple[Operation, ...] = (
    lambda image, level, sign, fill: ImageOps.autocontrast(image),
    lambda image, level, sign, fill: ImageOps.equalize(image),
    lambda image, level, sign, fill: ImageOps.invert(image),
    lambda image, level, sign, fill: image.rotate(sign * 30 * level, resample=fill.filter, fillcolor=fill.color),
    _posterize,
    lambda image, level, sign, fill: ImageOps.solarize(image, 256 - min(256, int(256 * level))),
    _solarize_add,
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Sharpness),
    lambda image, level, sign, fill: _affine(image, (1, sign * 0.3 * level, 0, 0, 1, 0), fill),
    lambda image, level, sign, fill: _affine(image, (1, 0, 0, sign * 0.3 * level, 1, 0), fill),
    lambda image, level, sign, fill: _affine(image, (1, 0, sign * 0.45 * level * image.width, 0, 1, 0), fill),
    lambda image, level, sign, fill: _affine(image, (1, 0, 0, 0, 1, sign * 0.45 * level * image.height), fill),
)
# The operations of AutoAugment, as in the policy `original` of timm. At level 0, "posterize" and "solarize" are the
# strongest, and the last three operations reduce color, contrast or sharpness to a tenth.
POLICY_OPERATIONS: dict[str, Operation] = {
    "autocontrast": OPERATIONS[0], "equalize": OPERATIONS[1], "invert": OPERATIONS[2], "rotate": OPERATIONS[3],
    "shear": OPERATIONS[11],
    "posterize": lambda image, level, sign, fill: ImageOps.posterize(image, 4 + int(4 * level)),
    "solarize": lambda image, level, sign, fill: ImageOps.solarize(image, min(256, int(256 * level))),
    "color": lambda image, level, sign, fill: ImageEnhance.Color(image).enhance(0.1 + 1.8 * level),
    "contrast": lambda image, level, sign, fill: ImageEnhance.Contrast(image).enhance(0.1 + 1.8 * level),
    "sharpness": lambda image, level, sign, fill: ImageEnhance.Sharpness(image).enhance(0.1 + 1.8 * level),
}  # fmt: skip
_POLICIES = """
    posterize 4 8 rotate 6 9, solarize 6 5 autocontrast 6 5, equalize 8 8 equalize 6 3, posterize 6 7 posterize 6 6,
    equalize 4 7 solarize 2 4, equalize 4 4 rotate 8 8, solarize 6 3 equalize 6 7, posterize 8 5 equalize 10 2,
    rotate 2 3 solarize 6 8, equalize 6 8 posterize 4 6, rotate 8 8 color 4 0, rotate 4 9 equalize 6 2,
    equalize 0 7 equalize 8 8, invert 6 4 equalize 10 8, color 6 4 contrast 10 8, rotate 8 8 color 10 2,
    color 8 8 solarize 8 7, sharpness 4 7 invert 6 8, shear 6 5 equalize 10 9, color 4 0 equalize 6 3,
    equalize 4 7 solarize 2 4, solarize 6 5 autocontrast 6 5, invert 6 4 equalize 10 8, color 6 4 contrast 10 8,
    equalize 8 8 equalize 6 3
"""  # Cubuk 2018, table 9: operation, probability and level in tenths, twice
POLICIES = tuple(
    tuple((name, int(tenths) / 10, int(level) / 10) for name, tenths, level in re.findall(r"(\w+) (\d+) (\d+)", pair))
    for pair in _POLICIES.split(",")
)
