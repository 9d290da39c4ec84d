"""Picture of an explanation: the words of a text, shaded by value, or an image next to its heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.drawing import save_and_report
from manyheads.analysis.maps.picture_of_image import Color, heat_scale
from manyheads.errors import UserError, extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Word = tuple[str, float, NDArray[np.float64]]  # word of a text, its value, and its color (red, green, blue, opacity)
CHARACTERS = 80  # maximum number of characters in a line of a text
MAX_LINES = 60  # maximum number of lines
WIDTH, LINE = 7.0, 0.4  # width of a picture and height of a line, in inches


def draw(
    path: Path, title: str, limits: tuple[float, float], hues: tuple[Color, Color],
    parts: Sequence[Word] | tuple[NDArray[np.uint8], NDArray[np.uint8]],
) -> list[str]:  # fmt: skip
    """Draw an explanation, and return notes about characters that the font lacks.

    limits, hues  limits of the color scale, and the colors of positive and negative values
    parts         the words of a text; or an image, and the image under its heat map

    Raises UserError for a text of more than MAX_LINES lines.
    """
    with extra("analysis", "a picture"):
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

    figure = Figure((WIDTH, 3.5), layout="constrained", facecolor="white")
    if isinstance(parts, tuple):
        panels, place, shape = figure.subplots(1, 2), "right", 20
        for panel, image in zip(panels, parts, strict=True):
            panel.imshow(image, cmap="gray", interpolation="nearest")
    else:
        panels, place, shape = [figure.subplots()], "bottom", 50
        figure.set_figheight(LINE * _write(panels[0], parts) + 1.2)
    for panel in panels:
        panel.axis("off")
    figure.suptitle(title, fontsize=9, parse_math=False)
    scale = heat_scale(Normalize(*limits), *hues)
    figure.colorbar(scale, ax=panels, location=place, shrink=0.7, aspect=shape).ax.tick_params(labelsize=7)
    return save_and_report(figure, path, "the table")


def _write(panel: Axes, words: Sequence[Word]) -> int:
    """Write the words of a text, each above its value, and return the number of lines."""
    from matplotlib.patches import Rectangle

    line, start = 0, 0
    for name, value, color in words:
        text, number = name if len(name) < CHARACTERS else f"{name[: CHARACTERS - 2]}…", f"{value:.2g}"
        width = max(len(text), len(number) * 2 // 3) + 1
        line, start = (line + 1, 0) if start + width > CHARACTERS else (line, start)
        panel.add_patch(Rectangle((start, line + 0.05), width, 0.55, color=color, lw=0))
        for word, down, size in ((text, 0.32, 9), (number, 0.78, 6)):
            panel.text(start + width / 2, line + down, word, fontsize=size, ha="center", va="center",
                       family="monospace", parse_math=False)  # fmt: skip
        start += width + 1
    if line >= MAX_LINES:
        raise UserError(f"the text takes {line + 1} lines of a picture: shorten it to {MAX_LINES}")
    panel.set(xlim=(0, CHARACTERS), ylim=(line + 1, 0))
    return line + 1
