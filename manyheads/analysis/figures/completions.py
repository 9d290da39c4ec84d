"""Picture of images that a model has completed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

# Minimum size of an image and distance between images in pixels. Smaller images are enlarged.
SIDE, GAP = 96, 4


def draw_completions(path: str | Path, rows: Sequence[Sequence[Image.Image]]) -> None:
    """Draw images of equal size in rows, such as an image, its kept part and its completions."""
    side = max(SIDE, rows[0][0].width)
    size = ((side + GAP) * len(rows[0]) - GAP, (side + GAP) * len(rows) - GAP)
    sheet = Image.new("RGB", size, "#808080")
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            enlarged = image.resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(enlarged, ((side + GAP) * x, (side + GAP) * y))
    sheet.save(path)
