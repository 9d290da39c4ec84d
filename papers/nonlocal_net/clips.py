"""Reader of video clips.

A clip is a folder of frames, or a file with several frames (animated GIF, PNG or WebP, multi-page TIFF).
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from manyheads.data.images.checking import content, open_image
from manyheads.data.images.decoding import FORMATS, MOST_PIXELS, plain_image
from manyheads.data.images.files import PICTURES
from manyheads.errors import UserError
from manyheads.tasks.images.image_rows import evenly_spaced

# maximum number of pixels in a frame of an animation, for which Pillow renders all preceding frames
MAX_COMPOSED_PIXELS = 4 * MOST_PIXELS


class Clip(NamedTuple):
    """Frames of a clip in mode L or RGB, and the index of each frame in the clip, from 0."""

    frames: list[Image.Image]
    indices: list[int]


def read_clip(path: str | Path, max_frames: int) -> Clip:
    """Read at most `max_frames` evenly spaced frames of a clip.

    They include the first frame and, if there are at least two, the last frame. The frames of a folder are its
    images in the order of their names. Numbers in the names need leading zeros, so that the order of names is the
    order of time. A single image is a clip of one frame. Raises UserError.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in PICTURES and file.name[0] != ".")
        if not files:
            raise UserError(f"{path}: found no images; expected the frames of a clip ({', '.join(PICTURES)})")
        indices = evenly_spaced(len(files), max_frames)
        return Clip([open_image(files[number]) for number in indices], indices)
    return _frames_of_file(path, open_image(path), max_frames)


def _frames_of_file(path: Path, first: Image.Image, max_frames: int) -> Clip:
    """Read the selected frames of a file. `first` is its first frame, which has been decoded."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content(path)), formats=FORMATS) as image:
            warnings.simplefilter("ignore")
            indices = evenly_spaced(getattr(image, "n_frames", 1), max_frames)
            size = image.width * image.height
            _check_size(path, 0 if image.format == "TIFF" else (max(indices) + 1) * size, MAX_COMPOSED_PIXELS, "all")
            frames, pixels = [], 0
            for index in indices:
                image.seek(index)
                pixels += image.width * image.height  # The frames of a file may differ in size.
                _check_size(path, pixels, MOST_PIXELS, "the selected")
                frames.append(image.copy())
    except (UserError, MemoryError):
        raise
    except Exception as error:  # If the data are invalid, the parser of a format may raise any exception.
        raise UserError(f"{path}: truncated or corrupt frames ({error}); save the image again, or remove it") from None
    upright = [plain_image(frame, str(path)) if index else first for frame, index in zip(frames, indices, strict=True)]
    return Clip(upright, indices)


def _check_size(path: Path, pixels: int, max_pixels: int, frames: str) -> None:
    if pixels > max_pixels:
        raise UserError(
            f"{path}: {pixels:,} pixels in {frames} frames exceed the maximum of {max_pixels:,}; reduce the size of "
            "the image"
        )
