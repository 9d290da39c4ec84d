"""Static picture of a lens: words by layer and position, or the patches of an image for each layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from manyheads.analysis.drawing import new_figure, save_and_report, short_name, shortened
from manyheads.analysis.lens.values import LensValues
from manyheads.analysis.maps.picture_of_image import HEAT, OPAQUE
from manyheads.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 80  # maximum number of token positions in a picture
COLUMNS = 5  # layers of an image in one row


def draw_lens(lens: LensValues, path: str | Path) -> list[str]:
    """Draw the picture of a lens, and return notes about characters that the font lacks."""
    if lens.grid is None and len(lens.tokens) > LONGEST:
        raise UserError(f"{len(lens.tokens)} tokens are too many for a picture: shorten the text to {LONGEST}")
    figure = new_figure(1, 1)  # Its size follows from the content.
    title = f"{short_name(lens.model)}: {lens.title}"
    wide = _draw_text(lens, figure) if lens.grid is None else _draw_image(lens, figure)
    figure.suptitle(shortened(title, int(14 * wide)), fontsize=9, parse_math=False)
    return save_and_report(figure, path, "the page")


def _draw_text(lens: LensValues, figure: Figure) -> float:
    """Draw the words as a table with layers from bottom to top. Return the width of the figure in inches."""
    likeliest = lens.probabilities[..., 0]  # (L, T)
    shown = [[shortened(ranked[0]) for ranked in row] for row in lens.words]
    columns = max(len(word) for row in [*shown, [shortened(token) for token in lens.tokens]] for word in row)
    wide = max(1.3 + len(lens.tokens) * (0.2 + 0.075 * columns), 4.0)
    figure.set_size_inches(wide, 1.3 + 0.3 * len(lens.layers))
    panel = figure.subplots()
    image = panel.imshow(likeliest, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
    for row, words in enumerate(shown):
        for at, word in enumerate(words):
            panel.text(
                at, row, word, ha="center", va="center", fontsize=8, parse_math=False,
                color="white" if likeliest[row, at] > 0.55 else "black",
                weight="bold" if lens.words[row][at][0] == lens.answers[at] else "normal",
            )  # fmt: skip
    panel.set_yticks(range(len(lens.layers)), lens.names, fontsize=8)
    panel.set_xticks(range(len(lens.tokens)), [shortened(token) for token in lens.tokens], fontsize=8)
    for label in panel.get_xticklabels():
        label.set_parse_math(False)
    panel.tick_params(length=0)
    bar = figure.colorbar(image, ax=panel, pad=0.01)
    bar.set_label("probability", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return wide


def _draw_image(lens: LensValues, figure: Figure) -> float:
    """Draw the rank of the answer at each patch over the image, one panel per layer. Return the width in inches."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    assert lens.grid is not None
    assert lens.picture is not None
    rows, columns = -(-len(lens.layers) // COLUMNS), min(COLUMNS, len(lens.layers))
    figure.set_size_inches(wide := 0.9 + 1.8 * columns, 0.5 + 2.1 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    gray = 40 + np.asarray(Image.fromarray(lens.picture.squeeze()).convert("L")) * 0.75
    heat = LinearSegmentedColormap.from_list("heat", [(*HEAT, OPAQUE), (*HEAT, 0.0)])
    scale, (down, across) = LogNorm(1, max(2, lens.ranks.max())), lens.grid.cover
    for panel in panels:
        panel.set_axis_off()
    for panel, name, words, p, ranks in zip(
        panels, lens.names, lens.words, lens.probabilities, lens.ranks, strict=False
    ):
        cells = ranks[len(lens.grid.tokens) :].reshape(lens.grid[:2])
        panel.imshow(gray, cmap="gray", extent=(0, 1, 1, 0), vmin=0, vmax=255)
        image = panel.imshow(cells, cmap=heat, norm=scale, extent=(0, across, down, 0), interpolation="nearest")
        panel.set(xlim=(0, 1), ylim=(1, 0))
        panel.set_title(f"{name}\n{shortened(words[0][0])} {p[0, 0]:.0%}", fontsize=7, parse_math=False)
    bar = figure.colorbar(image, ax=panels, pad=0.01, aspect=30, format="%d")
    bar.set_label(f"rank of {lens.answers[0]}", fontsize=8, parse_math=False)
    bar.ax.tick_params(labelsize=7)
    return wide
