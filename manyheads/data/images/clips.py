"""Reader of video clips.

A clip is a folder of frames, or a file with several frames (animated GIF, PNG or WebP, multi-page TIFF).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from PIL import Image

from manyheads.data.images.checking import content, open_image
from manyheads.data.images.decoding import ImageFault, decode_frames
from manyheads.data.images.files import PICTURES
from manyheads.errors import UserError


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
    try:
        return Clip(*decode_frames(content(path), lambda count: evenly_spaced(count, max_frames)))
    except ImageFault as error:
        raise UserError(f"{path}: {error.fault}; {error.hint}") from None


def evenly_spaced(count: int, max_frames: int) -> list[int]:
    """Return at most `max_frames` evenly spaced frame indices from 0 to count - 1, including 0 and count - 1."""
    if count <= max_frames:
        return list(range(count))
    return [round(i * (count - 1) / max(max_frames - 1, 1)) for i in range(max_frames)]
