"""Decoder of image files to 8-bit pixels, grayscale or RGB. It describes the fault of a damaged file in one line.

All image formats are converted to one of two Pillow modes: L (grayscale) or RGB.

    1, L, 16 bits        grayscale; 16-bit values are divided by 257, so that black stays 0 and white becomes 255
    P, CMYK, YCbCr       converted by Pillow (without ICC profiles)
    alpha, transparency  composited on white, as in most programs, because hidden pixels may have any color
    EXIF orientation     rotated upright
    several frames       the first frame
"""

from __future__ import annotations

import io
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from manyheads.data.readers.rows import BadRow
from manyheads.errors import UserError

# Maximum number of pixels of an image (360 MB decoded). Photographs of cameras have up to 108 million. The size in the
# header of a file is compared with it before decoding, because a file of a few bytes can claim to be a huge image.
MOST_PIXELS = 120_000_000

# EPS is not supported, because decoding it runs a program.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_DEFAULT_HINT = "save the image again, or remove it"


class ImageFault(BadRow):
    """Exception for an image that cannot be used, with the fault and a hint on how to correct it."""

    def __init__(self, fault: str, hint: str = _DEFAULT_HINT) -> None:
        super().__init__(fault, hint)


class Decoded(NamedTuple):
    image: Image.Image  # image in Pillow mode L (grayscale) or RGB
    mode: str  # Pillow mode of the image in the file
    notes: list[str]  # warnings of Pillow, for example about corrupt EXIF data


def decode(data: bytes, max_pixels: int = MOST_PIXELS) -> Decoded:
    """Decode the content of an image file. Raises ImageFault if it is damaged or has more than `max_pixels` pixels."""
    if not data:
        raise ImageFault("the image is empty (0 bytes)")
    notes: list[str] = []
    try:
        with _warnings_into(notes):
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        count = re.search(r"\d+", str(error))
        raise ImageFault(*_too_large(f"{int(count[0]):,} pixels" if count else "its pixels", max_pixels)) from None
    except MemoryError:  # The image is not faulty.
        raise
    except Exception:  # If the data are invalid, the parser of a format may raise any exception.
        raise _open_fault(data) from None
    mode, plain = image.mode, _upright(image, notes, max_pixels)
    if image.format == "PNG" and _may_lack_rows(image) and _lacks_rows(data, image.size):
        raise ImageFault("truncated or corrupt PNG image (it contains fewer rows than its header says)")
    return Decoded(plain, mode, notes)


def plain_image(image: Image.Image, name: str = "the image") -> Image.Image:
    """Convert a Pillow image to mode L or RGB and rotate it upright, as `decode` does for an image file.

    name  beginning of the error message

    Raises UserError if the image cannot be used.
    """
    try:
        return _upright(image, [])
    except ImageFault as error:
        raise UserError(f"{name}: {error.fault}; {error.hint}") from None


def _upright(image: Image.Image, notes: list[str], max_pixels: int = MOST_PIXELS) -> Image.Image:
    if 0 in image.size:
        raise ImageFault(f"expected an image, found {image.width} x {image.height} pixels")
    if image.width * image.height > max_pixels:
        raise ImageFault(*_too_large(f"{image.width:,} x {image.height:,} pixels", max_pixels))
    try:
        image.load()  # Loading the first frame raises an exception if the frame is truncated.
        with _warnings_into(notes):
            upright = ImageOps.exif_transpose(image)
        return _plain(upright)
    except (ImageFault, MemoryError):
        raise
    except Exception as error:  # If the data are invalid, the parser of a format may raise any exception.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = f"a {image.format} image" if image.format else "an image"
        raise ImageFault(f"{kind} that is truncated or corrupt ({reason})") from None


_warnings_lock = threading.Lock()  # Python's warning filters are shared by all threads.


@contextmanager
def _warnings_into(notes: list[str]) -> Iterator[None]:
    with _warnings_lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Disable Pillow's warning about large images: MOST_PIXELS limits the number of pixels instead.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
    notes += [" ".join(str(warning.message).split()) for warning in caught]


def _open_fault(data: bytes) -> ImageFault:
    for kind in FORMATS:
        accept = Image.OPEN[kind][1]
        if accept is not None and accept(data[:16]):
            return ImageFault(f"a {kind} image with a truncated or corrupt header")
    return ImageFault(
        f"not an image in a supported format ({', '.join(FORMATS)})", "convert the file if it is an image, or remove it"
    )


def _may_lack_rows(image: Image.Image) -> bool:
    """Return True if a decoded image may be incomplete: one of its last two rows is black.

    Pillow fills the missing rows of a truncated image with black, without an error. Two rows are checked, because the
    last pass of an interlaced image contains only every other row.
    """
    end = np.asarray(image.crop((0, max(image.height - 2, 0), image.width, image.height)))
    return getattr(image, "n_frames", 1) == 1 and not all(row.any() for row in end)


def _lacks_rows(png: bytes, size: tuple[int, int]) -> bool:
    """Return True if a PNG file contains fewer bytes of pixel data than its header says.

    Source: PNG specification, sections 7.2, 8.2 and 9.
    """
    width, height, depth, color, interlaced = struct.unpack(">IIBBxxB", png[16:29])
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
    # The sizes differ if Pillow has read a second header in the file.
    if (width, height) != size or color not in channels:
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


def _too_large(size: str, max_pixels: int) -> tuple[str, str]:
    return f"{size} exceed the maximum of {max_pixels:,}", "reduce the size of the image"


def _plain(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if mode == "1":
        return image.convert("L")
    if mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65_535:
            raise ImageFault(
                "32-bit pixels exceed 16 bits, so their white level is unknown", "save the image with 8 or 16 bits"
            )
        return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    if mode == "F":
        raise ImageFault(
            "floating-point pixels have an unknown black and white level", "save the image with 8 or 16 bits"
        )
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        is_grayscale = mode in ("L", "LA", "La")
        layer = image.convert("RGBA")
        flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer)
        return flat.convert("L" if is_grayscale else "RGB")
    return image.convert("RGB")
