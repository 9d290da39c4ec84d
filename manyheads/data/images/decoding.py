"""From the bytes of any image file to 8-bit pixels, grey or red, green and blue; a fault is one line.

How each kind becomes one of two modes, L or RGB:

    1, L, 16 bits        grey; 16 bits are divided by 257, so that black stays 0 and white becomes 255
    P, CMYK, YCbCr       converted by Pillow (ICC profiles are not applied)
    alpha, transparency  laid on white, as most programs show them: hidden pixels may have any colour
    EXIF orientation     turned upright
    several frames       the first one
"""

from __future__ import annotations

import io
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from manyheads.errors import UserError

# The largest image, 360 MB when decoded: cameras make 108 million pixels. It is checked in the header, before anything
# is decoded, as a file of a few bytes can claim to hold far more.
MOST_PIXELS = 120_000_000
MOST_COMPOSED = 4 * MOST_PIXELS  # of an animation, to show one frame: Pillow draws all that come before it

_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # no EPS: that runs a program
_REMEDY = "save it again, or remove it"


class ImageFault(Exception):
    """Why an image cannot be used, and what to do about it."""

    def __init__(self, fault: str, hint: str = _REMEDY) -> None:
        super().__init__(fault, hint)
        self.fault, self.hint = fault, hint


class Decoded(NamedTuple):
    image: Image.Image  # in mode L or RGB
    mode: str  # that it had
    notes: list[str]  # what Pillow warns of, such as a corrupt EXIF part


def decode(data: bytes, most: int = MOST_PIXELS) -> Decoded:
    """The image in the bytes of a file, of `most` pixels at most. Raises ImageFault."""
    if not data:
        raise ImageFault("the image is empty (0 bytes)")
    notes: list[str] = []
    try:
        with _warnings_into(notes):
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        count = re.search(r"\d+", str(error))
        raise ImageFault(*_too_large(f"{int(count[0]):,} pixels" if count else "its pixels", most)) from None
    except MemoryError:  # the machine's fault, not the image's
        raise
    except Exception:  # a parser given garbage raises whatever it stumbles upon
        raise _not_opened(data) from None
    mode, plain = image.mode, _upright(image, notes, most)
    if image.format == "PNG" and _may_lack_rows(image) and _lacks_rows(data, image.size):
        raise ImageFault("a PNG image that is truncated or corrupt (it holds fewer rows than it says)")
    return Decoded(plain, mode, notes)


def decode_frames(data: bytes, choose: Callable[[int], list[int]]) -> tuple[list[Image.Image], list[int]]:
    """Frames of a file that holds several, in mode L or RGB: those whose numbers `choose` gives for their count, and
    these numbers. Raises ImageFault."""
    first, notes = decode(data).image, list[str]()
    try:
        with _warnings_into(notes), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            numbers = choose(getattr(image, "n_frames", 1))
            shown, pixels = [], 0
            drawn = 0 if image.format == "TIFF" else (max(numbers) + 1) * image.width * image.height
            if drawn > MOST_COMPOSED:
                raise ImageFault(*_too_large(f"{drawn:,} pixels of all its frames", MOST_COMPOSED))
            for number in numbers:
                image.seek(number)
                pixels += image.width * image.height  # of a frame, which need not be those of the first one
                if pixels > MOST_PIXELS:
                    raise ImageFault(*_too_large(f"{pixels:,} pixels of its frames", MOST_PIXELS))
                shown.append(image.copy())
    except (ImageFault, MemoryError):
        raise
    except Exception as error:  # any, as above
        raise ImageFault(f"frames that are truncated or corrupt ({error})") from None
    return [_upright(frame, notes) if number else first for frame, number in zip(shown, numbers, strict=True)], numbers


def plain_image(image: Image.Image, name: str = "the image") -> Image.Image:
    """An image that Pillow has opened or that was made in memory, as its file would be read: upright, in mode L or RGB.

    Raises UserError, which begins with `name`.
    """
    try:
        return _upright(image, [])
    except ImageFault as error:
        raise UserError(f"{name}: {error.fault}; {error.hint}") from None


def _upright(image: Image.Image, notes: list[str], most: int = MOST_PIXELS) -> Image.Image:
    if 0 in image.size:
        raise ImageFault(f"{image.width} x {image.height} pixels are no image")
    if image.width * image.height > most:
        raise ImageFault(*_too_large(f"{image.width:,} x {image.height:,} pixels", most))
    try:
        image.load()  # the first frame; raises where it is cut short
        with _warnings_into(notes):
            upright = ImageOps.exif_transpose(image)
        return _plain(upright)
    except (ImageFault, MemoryError):
        raise
    except Exception as error:  # any, as above
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = f"a {image.format} image" if image.format else "an image"
        raise ImageFault(f"{kind} that is truncated or corrupt ({reason})") from None


_one_at_a_time = threading.Lock()  # Python has one setting of warnings for all threads


@contextmanager
def _warnings_into(notes: list[str]) -> Iterator[None]:
    with _one_at_a_time, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # MOST_PIXELS is the bound here
        yield
    notes += [" ".join(str(warning.message).split()) for warning in caught]


def _not_opened(data: bytes) -> ImageFault:
    for kind in _FORMATS:
        accept = Image.OPEN[kind][1]
        if accept is not None and accept(data[:16]):
            return ImageFault(f"a {kind} image that is truncated or corrupt in its header")
    return ImageFault(f"not an image ({', '.join(_FORMATS)})", "remove it, or convert it if it is one of another kind")


def _may_lack_rows(image: Image.Image) -> bool:
    """Whether one of the last two rows is black: Pillow fills missing rows with black and reports nothing. Two, because
    the last pass of an interlaced image holds every other row only."""
    end = np.asarray(image.crop((0, max(image.height - 2, 0), image.width, image.height)))
    return getattr(image, "n_frames", 1) == 1 and not all(row.any() for row in end)


def _lacks_rows(png: bytes, size: tuple[int, int]) -> bool:
    """Whether the pixels of a PNG are fewer bytes than its header says (PNG specification, sections 7.2, 8.2 and 9)."""
    width, height, depth, color, interlaced = struct.unpack(">IIBBxxB", png[16:29])
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
    if (width, height) != size or color not in channels:  # a second header has told Pillow something else
        return True
    bits = depth * channels[color]
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    expected = 0
    for left, top, across, down in passes if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        expected += rows * (1 + -(-columns * bits // 8)) if columns > 0 and rows > 0 else 0
    compressed, at = [], 8
    while at + 8 <= len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        if kind == b"IDAT":
            compressed.append(png[at + 8 : at + 8 + length])
        at += 12 + length
    try:
        return len(zlib.decompressobj().decompress(b"".join(compressed), expected)) < expected
    except zlib.error:
        return True


def _too_large(size: str, most: int) -> tuple[str, str]:
    return f"{size} are more than the {most:,} that are decoded", "make it smaller"


def _plain(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if mode == "1":
        return image.convert("L")
    if mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65_535:
            raise ImageFault("32-bit pixels beyond 16 bits, whose white is not known", "save it with 8 or 16 bits")
        return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    if mode == "F":
        raise ImageFault("floating-point pixels, whose black and white are not known", "save it with 8 or 16 bits")
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        grey = mode in ("L", "LA", "La")
        layer = image.convert("RGBA")
        flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer)
        return flat.convert("L" if grey else "RGB")
    return image.convert("RGB")
