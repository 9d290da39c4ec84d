"""Video classification tasks: which digit moves behind a slit, which way it moves, or whether two digits are equal.

digit      Each frame shows the digit through a slit, at a position that varies between frames, so a model must combine
           all frames.
direction  The digit moves to the left or to the right, and re-enters on the other side. The frames of a clip in reverse
           order are a clip with the other label, so a model that does not know their order is right by chance.
pair       Each frame shows a digit at a random position: the same picture in all frames, or pictures of different
           digits. Every frame alone is equally likely with both labels.

The digits are the 8 x 8 images of scikit-learn; the splits contain different handwritten digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from manyheads.core.config import Range
from manyheads.data.images.labeled_images import ImageData, digits
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.source import Items, Source
from manyheads.errors import UserError
from manyheads.files import fingerprint

LABELS = {"digit": tuple(map(str, range(10))), "direction": ("left", "right"), "pair": ("different", "same")}
DIGIT = 8  # height and width of a digit image in pixels
MAX_SPEED = 2  # maximum speed of the digit in each direction, in pixels per frame


@dataclass(frozen=True)
class Clips:
    """Data set of clips (N, T, Y, X) in grayscale, with their labels."""

    pixels: NDArray[np.uint8]
    labels: list[str]
    skips: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, chosen: Sequence[int] | NDArray[np.int64]) -> Clips:
        return replace(self, pixels=self.pixels[np.asarray(chosen)], labels=[self.labels[i] for i in chosen])


MAX_PIXELS = 2**32  # maximum total number of pixels in all clips; they are in memory at the same time


@dataclass(frozen=True, kw_only=True)
class ClipSource(Source[Clips]):
    """Data source of generated clips of moving digits.

    predict what the label is: the digit, its direction, or whether the frames show the same digit
    size    number of training clips
    tested  number of validation clips, and number of test clips
    frames  number of frames per clip
    side    height and width of a frame in pixels
    slit    number of visible columns of the digit in each frame, at a random position
    """

    kind = "clips"
    unit = "clips"

    predict: Literal["digit", "direction", "pair"] = "digit"
    size: Items = 10_000
    tested: Items = 1000
    frames: Annotated[int, Range(1, 1000)] = 8
    side: Annotated[int, Range(DIGIT, 1000)] = 16
    slit: Annotated[int, Range(1, DIGIT)] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if (pixels := (self.size + 2 * self.tested) * self.frames * self.side**2) > MAX_PIXELS:
            raise UserError(f"expected at most {MAX_PIXELS:,} pixels in all clips together, found {pixels:,}")

    def embedded(self) -> SplitData[Clips]:
        digit_images = digits(self.seed)
        assert digit_images.test is not None
        return SplitData(
            self._generate(digit_images.train, self.size, 0), self._generate(digit_images.validation, self.tested, 1),
            self._generate(digit_images.test, self.tested, 2),
        )  # fmt: skip

    def report(self, splits: SplitData[Clips]) -> str:
        shape = " x ".join(map(str, splits.train.pixels.shape[1:]))
        return f"{len(splits.train):,} training clips of {shape}, {len(splits.validation):,} validation clips"

    def content(self, data: Clips, split: str) -> list[str]:
        return [fingerprint([data.pixels.tobytes()]), *data.labels]

    def _generate(self, digit_images: ImageData, count: int, split: int) -> Clips:
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, split])))
        pixels = np.zeros((count, self.frames, self.side, self.side), dtype=np.uint8)
        chosen = random.integers(len(digit_images), size=count).tolist()
        labels = []
        for clip, index in zip(pixels, chosen, strict=True):
            digit = digit_images.items[index].source
            assert isinstance(digit, np.ndarray)
            if self.predict == "direction":
                labels.append(self._shift(clip, digit, random))
            elif self.predict == "pair":
                labels.append(self._pair(clip, index, digit_images, random))
            else:
                self._move(clip, digit, random)
                labels.append(digit_images.labels[index])
        return Clips(pixels, labels)

    def _shift(self, clip: NDArray[np.uint8], digit: NDArray[np.uint8], random: Generator) -> str:
        """Draw the digit into the frames (T, Y, X) at a position that moves to one side. Return this side."""
        row = int(random.integers(0, self.side - DIGIT, endpoint=True))
        first, speed, right = (int(random.integers(*bounds)) for bounds in ((0, self.side), (1, MAX_SPEED + 1), (0, 2)))
        clip[:, row : row + DIGIT, :DIGIT] = digit
        for number, frame in enumerate(clip):
            frame[:] = np.roll(frame, first + number * (speed if right else -speed), axis=1)
        return "right" if right else "left"

    def _pair(self, clip: NDArray[np.uint8], index: int, digit_images: ImageData, random: Generator) -> str:
        """Draw the digit of this index into all frames (T, Y, X), or a different digit after the first frame."""
        label = LABELS["pair"][int(random.integers(2))]
        others = [i for i, name in enumerate(digit_images.labels) if name != digit_images.labels[index]]
        for number, frame in enumerate(clip):
            shown = index if label == "same" or not number else others[int(random.integers(len(others)))]
            y, x = random.integers(0, self.side - DIGIT, 2, endpoint=True).tolist()
            frame[y : y + DIGIT, x : x + DIGIT] = digit_images.items[shown].source
        return label

    def _move(self, clip: NDArray[np.uint8], digit: NDArray[np.uint8], random: Generator) -> None:
        """Draw the moving digit into the frames (T, Y, X). The digit bounces off the borders."""
        room = self.side - DIGIT
        at = random.integers(0, room, 2, endpoint=True)
        speed = random.integers(-MAX_SPEED, MAX_SPEED, 2, endpoint=True)
        for frame, slit in zip(clip, random.integers(0, DIGIT - self.slit, len(clip), endpoint=True), strict=True):
            y, x = at.tolist()
            columns = slice(int(slit), int(slit) + self.slit)
            frame[y : y + DIGIT, x : x + DIGIT][:, columns] = digit[:, columns]
            speed = np.where((at + speed < 0) | (at + speed > room), -speed, speed)
            at = np.clip(at + speed, 0, room)
