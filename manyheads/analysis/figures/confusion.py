"""Pictures of the errors of a classifier: its confusion matrix, and the wrongly classified images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.analysis.drawing import new_figure, save, shortened
from manyheads.errors import UserError
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

COUNTED = 20  # maximum number of labels of a matrix in which each cell shows its count
COLUMNS = 8  # number of images or matrices in a row of a picture
LABEL = 24  # maximum number of characters of a label
PANELS = 80  # maximum number of labels in a picture with a matrix for each label


def draw_confusion(path: str | Path, labels: Sequence[str], counts: NDArray[np.int64]) -> None:
    """Draw a confusion matrix. The color of a cell shows the fraction of the items with this true label.

    counts  number of items for each true label (row) and predicted label (column), (L, L); or a matrix for each label,
            (L, 2, 2), whose rows and columns mean "no" and "yes"
    """
    if counts.ndim == 3 and len(labels) > PANELS:
        raise UserError(
            f"found {len(labels):,} labels, and a picture has at most {PANELS}: print them by --confusion -"
        )
    if counts.ndim == 3:
        width = min(COLUMNS, len(labels))
        rows = -(-len(labels) // width)
        drawing = new_figure(1.9 * width + 0.4, 2.1 * rows + 0.4)
        panels = list(drawing.subplots(rows, width, squeeze=False).flat)
        for panel, label, cells in zip(panels, labels, counts, strict=False):
            _draw_matrix(panel, ("no", "yes"), cells)
            panel.set_title(shortened(label, LABEL), fontsize=9, parse_math=False)
        for panel in panels[len(labels) :]:
            panel.axis("off")
        drawing.supxlabel("predicted", fontsize=10)
        drawing.supylabel("true", fontsize=10)
    else:
        side = 2.5 + 0.45 * min(len(labels), 40)
        drawing = new_figure(side + 1, side)
        panel = drawing.subplots()
        image = _draw_matrix(panel, labels, counts, rotation=60)
        drawing.colorbar(image, ax=panel, label="fraction of the true label")
        panel.set(xlabel="predicted label", ylabel="true label")
    save(drawing, path)


def _draw_matrix(panel: Axes, labels: Sequence[str], counts: NDArray[np.int64], rotation: int = 0) -> AxesImage:
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    style: JsonObject = {"fontsize": min(9, 360 / len(labels)), "parse_math": False}
    names = [shortened(label, LABEL) for label in labels]
    panel.set_xticks(range(len(labels)), names, rotation=rotation, ha="right" if rotation else "center", **style)
    panel.set_yticks(range(len(labels)), names, **style)
    for (row, column), count in np.ndenumerate(counts if len(labels) <= COUNTED else counts[:0]):
        color = "white" if shares[row, column] > 0.5 else "black"
        panel.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=8)
    return image


def draw_sheet(path: str | Path, pictures: Sequence[tuple[Image.Image, str]]) -> None:
    """Draw images in a grid, each with a caption."""
    rows = max(1, -(-len(pictures) // COLUMNS))
    drawing = new_figure(1.5 * COLUMNS, 1.8 * rows)
    panels = list(drawing.subplots(rows, COLUMNS, squeeze=False).flat)
    for panel in panels:
        panel.axis("off")
    for panel, (image, caption) in zip(panels, pictures, strict=False):
        panel.imshow(image, cmap="gray" if image.mode == "L" else None)
        panel.set_title(caption, fontsize=7, parse_math=False, wrap=True)
    save(drawing, path)
