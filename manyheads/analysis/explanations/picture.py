"""Picture of an explanation: the words of a text, shaded by value, or an image next to its heat map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.analysis.drawing import save_and_report, short_name
from manyheads.analysis.maps.picture_of_image import heat_scale
from manyheads.errors import UserError, extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

    figure = Figure((WIDTH, 3.5), layout="constrained", facecolor="white")
    title = f"{explanation!r}\n{short_name(explanation.model)}"
    if explanation.side is None:
        panels, place, shape = figure.subplots(1, 2), "right", 20
        panels[0].imshow(explanation.panels[0].picture, cmap="gray", interpolation="nearest")
        panels[1].imshow(explanation.overlay(), interpolation="nearest")
        title = f"{title}: {explanation.title}"
    else:
        panels, place, shape = [figure.subplots()], "bottom", 50
        figure.set_figheight(LINE * _write(panels[0], explanation.words()) + 1.2)
    for panel in panels:
        panel.axis("off")
    figure.suptitle(title, fontsize=9, parse_math=False)
    scale = heat_scale(Normalize(*explanation.limits), *explanation.hues)
    figure.colorbar(scale, ax=panels, location=place, shrink=0.7, aspect=shape).ax.tick_params(labelsize=7)
    return save_and_report(figure, path, "the table")


def _write(panel: Axes, explanation: Explanation) -> int:
    """Write the words of a text, each above its value, and return the number of lines."""
    from matplotlib.patches import Rectangle

    assert explanation.side is not None
    line, start = 0, 0
    for name, value, color in zip(explanation.side.tokens, explanation.values, explanation.colors(), strict=True):
        text, number = name if len(name) < CHARACTERS else f"{name[: CHARACTERS - 2]}…", f"{value:.2g}"
        width = max(len(text), len(number) * 2 // 3) + 1
        line, start = (line + 1, 0) if start + width > CHARACTERS else (line, start)
        if line >= MAX_LINES:
            raise UserError(f"the text takes more than {MAX_LINES} lines of a picture: shorten it")
        panel.add_patch(Rectangle((start, line + 0.05), width, 0.55, color=color, lw=0))
        for word, down, size in ((text, 0.32, 9), (number, 0.78, 6)):
            panel.text(start + width / 2, line + down, word, fontsize=size, ha="center", va="center",
                       family="monospace", parse_math=False)  # fmt: skip
        start += width + 1
    panel.set(xlim=(0, CHARACTERS), ylim=(line + 1, 0))
    return line + 1
