"""From the bytes of any image file to 8-bit pixels, grey or red, green and blue; what cannot be is told in a line.

How each kind becomes one of two modes, L or RGB:

    1, L, 16 bits        grey; 16 bits are divided by 257, so that black stays 0 and white becomes 255
    P, CMYK, YCbCr       converted by Pillow (ICC profiles are not applied)
    alpha, transparency  laid on white, as most programs show them: hidden pixels may have any colour
    EXIF orientation     turned upright
    several frames       the first one
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps

MOST_PIXELS = 50_000_000  # of one image, 150 MB when decoded; a small file can claim to hold far more

_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # no EPS: that runs a program
_REMEDY = "save it again, or remove it"


class ImageFault(Exception):
    """Why an image cannot be used, and what to do about it."""

    def __init__(self, fault: str, remedy: str = _REMEDY) -> None:
        super().__init__(fault, remedy)
        self.fault, self.remedy = fault, remedy


def decode(data: bytes) -> tuple[Image.Image, str]:
    """(the image, in mode L or RGB; the mode it had). Raises ImageFault."""
    if not data:
        raise ImageFault("the image is empty (0 bytes)")
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError:
        raise ImageFault(*_too_large("its pixels")) from None
    except Exception:  # as below
        kinds = ", ".join(_FORMATS)
        raise ImageFault(
            f"not an image ({kinds}), or cut off in its header", "convert it to PNG, or remove it"
        ) from None
    return _upright(image), image.mode


def plain_image(image: Image.Image, name: str = "the image") -> Image.Image:
    """An image that Pillow has opened or that was made in memory, as its file would be read: upright, in mode L or RGB.

    Raises ValueError, which begins with `name`.
    """
    try:
        return _upright(image)
    except ImageFault as error:
        raise ValueError(f"{name}: {error.fault}; {error.remedy}") from None


def _upright(image: Image.Image) -> Image.Image:
    if 0 in image.size:
        raise ImageFault(f"{image.width} x {image.height} pixels are no image")
    if image.width * image.height > MOST_PIXELS:
        raise ImageFault(*_too_large(f"{image.width:,} x {image.height:,} pixels"))
    try:
        image.load()  # the first frame; raises where it is cut short
        return _plain(ImageOps.exif_transpose(image))
    except ImageFault:
        raise
    except Exception as error:  # a parser given garbage raises whatever it stumbles upon
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = f"a {image.format} image" if image.format else "an image"
        raise ImageFault(f"{kind} that is truncated or corrupt ({reason})") from None


def _too_large(size: str) -> tuple[str, str]:
    return f"{size} are more than the {MOST_PIXELS:,} that are decoded", "make it smaller"


def _plain(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return image
    if mode == "1":
        return image.convert("L")
    if mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65_535:
            raise ImageFault("32-bit pixels beyond 16 bits, whose white is not known", "save it with 8 or 16 bits")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if mode == "F":
        raise ImageFault("floating-point pixels, whose black and white are not known", "save it with 8 or 16 bits")
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        grey = mode in ("L", "LA", "La")
        layer = image.convert("RGBA")
        flat = Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer)
        return flat.convert("L" if grey else "RGB")
    return image.convert("RGB")
