"""Picture of an image with the boxes of its objects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

SHORTEST = 480  # Smaller images are enlarged to at least this number of pixels on the longer side.
COLORS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")  # Okabe and Ito 2008


# object with its label, its score, the left, top, right and bottom edge of its box in pixels, and a further number
Box = tuple[str, float, float, float, float, float, int]


def draw_boxes(path: str | Path, image: Image.Image, objects: Sequence[Box]) -> None:
    """Draw the box, the label and the score of each object over an image. Each label has a color."""
    picture = image.convert("RGB")
    factor = max(1, round(SHORTEST / max(picture.size)))
    picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(picture)
    names = sorted({label for label, *_ in objects})
    for label, score, *edges, _ in sorted(objects, key=lambda each: each[1]):
        color = COLORS[names.index(label) % len(COLORS)]
        left, top, right, bottom = (factor * edge for edge in edges)
        draw.rectangle((left, top, right, bottom), outline=color, width=2)
        caption = f"{label} {score:.2f}"
        around = draw.textbbox((left + 2, top), caption, font_size=13)
        above = min(top, around[3] - around[1] + 5)  # inside of the image
        at = (left + 2, top - above)
        draw.rectangle((left, at[1], around[2] + 2, at[1] + above), fill=color)
        draw.text(at, caption, fill="black", font_size=13)
    picture.save(path)
