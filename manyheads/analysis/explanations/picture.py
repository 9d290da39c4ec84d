"""Picture of an explanation: the words of a text, shaded by value, or an image next to its heat map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.drawing import save_and_report, short_name
from manyheads.analysis.maps.picture_of_image import heat_scale
from manyheads.errors import UserError, extra

if TYPE_CHECKING:
    from manyheads.analysis.explanations.explanation import Explanation

CHARACTERS = 80  # maximum number of characters in a line of a text
MAX_LINES = 60  # maximum number of lines
WIDTH, LINE = 7.0, 0.4  # width of a picture and height of a line, in inches


def draw(explanation: Explanation, path: Path) -> list[str]:
    """Draw an explanation, and return notes about characters that the font lacks.

    Raises UserError for a text of more than MAX_LINES lines.
    """
    with extra("analysis", "a picture"):
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

    image = explanation.picture is not None
    words = [] if image else _place(explanation.words())
    count = words[-1].line + 1 if words else 0
    if count > MAX_LINES:
        raise UserError(f"the text takes {count} lines of a picture: shorten it to {MAX_LINES}")
    figure = Figure((7.0, 3.9) if image else (WIDTH, LINE * count + 1.2), layout="constrained", facecolor="white")
    title = f"{short_name(explanation.model)}{f': {explanation.title}' if image else ''}\n{explanation.summary}"
    figure.suptitle(title, fontsize=9, parse_math=False)
    panels = figure.subplots(1, 2 if image else 1, squeeze=False)[0]
    for panel in panels:
        panel.axis("off")
    if image:
        panels[0].imshow(explanation.picture, cmap="gray", interpolation="nearest")
        panels[1].imshow(explanation.overlay(), interpolation="nearest")
    else:
        panels[0].set(xlim=(0, CHARACTERS), ylim=(count, 0))
        for word in words:
            panels[0].add_patch(Rectangle((word.start, word.line + 0.05), word.width, 0.55, color=word.color, lw=0))
            middle = word.start + word.width / 2
            style = {"ha": "center", "va": "center", "family": "monospace", "parse_math": False}
            panels[0].text(middle, word.line + 0.32, word.text, fontsize=9, **style)
            panels[0].text(middle, word.line + 0.78, word.value, fontsize=6, color="#555555", **style)
    bar = figure.colorbar(
        heat_scale(Normalize(*explanation.limits)), ax=panels, location="right" if image else "bottom", shrink=0.7,
        aspect=20 if image else 50,
    )  # fmt: skip
    bar.ax.tick_params(labelsize=7)
    return save_and_report(figure, path, "the table")


class _Word(NamedTuple):
    """Word of a text in a picture: its line, its first column and its width in characters."""

    text: str
    value: str
    color: NDArray[np.float64]
    line: int
    start: int
    width: int


def _place(explanation: Explanation) -> list[_Word]:
    """Return the words of a text in lines of at most CHARACTERS characters."""
    assert explanation.side is not None
    placed, line, start = list[_Word](), 0, 0
    for name, value, color in zip(explanation.side.tokens, explanation.values, explanation.colors(), strict=True):
        text, number = name if len(name) < CHARACTERS else f"{name[: CHARACTERS - 1]}…", f"{value:.2g}"
        width = max(len(text), len(number) * 2 // 3) + 1
        if start + width > CHARACTERS and start:
            line, start = line + 1, 0
        placed.append(_Word(text, number, color, line, start, width))
        start += width + 1
    return placed
