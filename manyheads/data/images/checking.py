"""Validation of all images before training.

Each image is decoded once, in threads, so that a faulty image stops a run before training begins.

The validation results may be saved in a file, so that a restarted or resumed run need not decode all images again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.decoding import MOST_PIXELS, ImageFault, decode
from manyheads.data.images.store import Stored
from manyheads.data.images.tar import Member, Sample
from manyheads.data.readers.rows import BadRow
from manyheads.errors import UserError
from manyheads.files import parse_json

logger = logging.getLogger(__name__)

COLOR = ("RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV")  # Pillow modes of images with colors
# Maximum size of an image file in bytes. Without a limit, a link to a special file such as /proc/kcore (2**47 bytes)
# would exhaust memory.
MAX_FILE_BYTES = 2**30
MAX_SMALL_BYTES = 2**20  # Images whose pixels need at most this number of bytes may stay in memory.
_IMAGES_PER_TASK = 16  # number of images that a thread validates in one task


class Check(NamedTuple):
    """Validation result of one image.

    key     hash of the pixels
    size    (width, height) after rotation by the EXIF orientation
    mode    Pillow mode of the image file
    nbytes  size of the pixels in bytes
    notes   warnings of the decoder
    stamp   identifier of the image in the file of saved validation results. If empty, the result is not saved
    pixels  (Y, X) or (Y, X, 3) pixels of a small image that stays in memory; None for other images
    """

    key: str
    size: tuple[int, int]
    mode: str
    nbytes: int
    notes: list[str]
    stamp: str = ""
    pixels: NDArray[np.uint8] | None = None


def read_checks(file: Path) -> dict[str, Check]:
    """Read saved validation results of images. Return a mapping from image identifiers to results.

    Damaged lines of the file are ignored. The identifier of an image file is computed from its path, size and
    modification time. The identifier of an image in a table cell is a hash of its bytes.
    """
    checks: dict[str, Check] = {}
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            key, size, *others = parse_json(line)
            check = Check(key, tuple(size), *others)
            checks[check.stamp] = check
        except (ValueError, TypeError):
            continue
    return checks


def append_checks(file: Path, checks: Iterable[Check]) -> None:
    """Append validation results of images to the file in which they are saved. Raises UserError if writing fails."""
    # The appended text begins with a newline, because the last line of the file may be incomplete.
    append_lines(file, [json.dumps(check[:-1]) for check in checks if check.stamp])


def append_lines(file: Path, lines: Sequence[str]) -> None:
    try:
        if lines:
            with file.open("a") as memory:
                memory.write("".join(f"\n{line}" for line in lines))
    except OSError as error:
        raise UserError(f"{file}: failed to write: {error.strerror}; free disk space") from error


def check_images(
    samples: Iterable[Sample], known: Mapping[str, Check], room: int
) -> Generator[tuple[Sample, Check | BadRow], None, None]:
    """Yield each sample of an image corpus with the validation result of its image, or with its fault.

    A few images at a time are decoded in threads. (Pillow releases the GIL.) Close the generator to end the threads.

    known  saved validation results: a mapping from image identifiers to results
    room   maximum total size in bytes of the pixels in all results. After the first image that is not small or
           exceeds this size, results contain no pixels, and images in `known` are not decoded again
    """
    threads, rest = os.cpu_count() or 1, iter(samples)
    # Results of images whose pixels do not stay in memory, by identifier. A table may name the same image in many rows,
    # and each image should be decoded only once.
    large: dict[str, Check | BadRow] = {}

    def check(part: list[Sample]) -> list[Check | BadRow]:
        return [_check(sample, known, large, room) for sample in part]

    with ThreadPoolExecutor(threads) as pool:
        while window := list(islice(rest, _IMAGES_PER_TASK * threads)):
            parts = [window[i : i + _IMAGES_PER_TASK] for i in range(0, len(window), _IMAGES_PER_TASK)]
            for part, results in zip(parts, pool.map(check, parts), strict=True):
                for sample, result in zip(part, results, strict=True):
                    if isinstance(result, Check):
                        room = room - result.nbytes if result.nbytes <= MAX_SMALL_BYTES else -1
                        result = result if room >= 0 else result._replace(pixels=None)
                    yield sample, result


def _check(sample: Sample, known: Mapping[str, Check], large: dict[str, Check | BadRow], room: int) -> Check | BadRow:
    if sample.fault is not None:
        return sample.fault
    if isinstance(sample.source, np.ndarray):
        return check_pixels(sample.source, "L")
    assert sample.source is not None
    stamp = _stamp(sample.source)
    if stamp in known and known[stamp].nbytes > min(MAX_SMALL_BYTES, room):
        return known[stamp]
    if stamp in large:
        return large[stamp]
    outcome = _decode_checked(sample.source, sample.place, stamp)
    if stamp and (isinstance(outcome, BadRow) or outcome.pixels is None):
        large[stamp] = outcome
    return outcome


def _decode_checked(source: bytes | Path | Member, place: str, stamp: str) -> Check | BadRow:
    try:
        image, mode, notes = decode(content(source))
        return check_pixels(np.asarray(image), mode, notes)._replace(stamp=stamp)
    # Return a new exception: the traceback of the original one would keep the image in memory.
    except ImageFault as error:
        # The path was read from a table, so the message must also name the image file.
        if isinstance(source, Path) and str(source) != place:
            return ImageFault(f"{source}: {error.fault}", error.hint)
        return ImageFault(error.fault, error.hint)


def check_pixels(pixels: NDArray[np.uint8], mode: str, notes: Sequence[str] = ()) -> Check:
    """Validate the pixels (Y, X) or (Y, X, 3) of an image, and return the validation result."""
    digest = blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).reshape(-1).data)
    small = pixels if pixels.nbytes <= MAX_SMALL_BYTES else None
    size = (pixels.shape[1], pixels.shape[0])
    return Check(digest.hexdigest(), size, mode, pixels.nbytes, list(notes), pixels=small)


def open_image(
    source: Stored | Path | Member | str | bytes | NDArray[np.uint8], max_pixels: int = MOST_PIXELS
) -> Image.Image:  # fmt: skip
    """Open an image from a file, from the bytes of a file, or from pixels. The result is upright, in mode L or RGB.

    Raises UserError if the image cannot be used. An image of more than `max_pixels` pixels is rejected before it is
    decoded.
    """
    if isinstance(source, Stored):
        source = source.image()
    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    if isinstance(source, str):
        if not source.strip():
            raise UserError(f"the path {source!r} is empty; give the path of an image")
        source = Path(source)
    try:
        return decode(content(source), max_pixels).image
    except ImageFault as error:
        place = f"{source}: " if isinstance(source, Path) else f"{source.tar}: " if isinstance(source, Member) else ""
        raise UserError(f"{place}{error.fault}; {error.hint}") from None


def _stamp(source: bytes | Path | Member) -> str:
    if isinstance(source, bytes):
        return blake2b(source, digest_size=16).hexdigest()
    file, place = (source.tar, f"\0{source.start}\0{source.size}") if isinstance(source, Member) else (source, "")
    try:
        status = file.stat()
    except (OSError, ValueError):  # The failure is reported later, when the image file is opened.
        return ""
    described = f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}{place}"
    return blake2b(os.fsencode(described), digest_size=16).hexdigest()


def content(source: bytes | Path | Member) -> bytes:
    """Return the content of an image file as bytes. Raises ImageFault if the file cannot be read."""
    if isinstance(source, bytes):
        return source
    try:
        if isinstance(source, Member):
            return source.read()
        if source.exists() and not source.is_file() and not source.is_dir():
            raise ImageFault("not a regular file (a pipe or a device)", "give the path of an image")
        if (size := source.stat().st_size) > MAX_FILE_BYTES:
            raise ImageFault(f"{size:,} bytes, too large for an image", "remove it")
        return source.read_bytes()
    except FileNotFoundError:
        if isinstance(source, Member):
            raise ImageFault("the file was removed", "do not move files during a run") from None
        link = f"a broken link to {source.readlink()}" if source.is_symlink() else "no such file"
        raise ImageFault(link, "give the path of an image") from None
    except IsADirectoryError:
        raise ImageFault("a directory, not an image", "give the path of an image") from None
    except (OSError, ValueError) as error:  # open() raises ValueError if the path contains a NUL byte.
        reason = getattr(error, "strerror", None) or error
        raise ImageFault(f"failed to read ({reason})", "make it readable, or remove it") from None


def warn_of_lost_colors(count: int, images: int) -> None:
    """Log a warning if images have colors. A model with one channel sees only their brightness."""
    if count:
        logger.warning(f"{count:,} of {images:,} training images have colors, but the model has one channel and sees "
                       "only their brightness; to use colors, set model.channels=3")  # fmt: skip
