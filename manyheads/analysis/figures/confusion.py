"""Pictures of the errors of a classifier: its confusion matrix, and the wrongly classified images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.analysis.drawing import save
from manyheads.errors import extra
from manyheads.files import JsonObject

COUNTED = 20  # maximum number of labels of a matrix in which each cell shows its count
COLUMNS = 8  # number of images in a row of the picture of wrongly classified images


def draw_confusion(path: str | Path, labels: Sequence[str], counts: NDArray[np.int64]) -> None:
    """Draw a confusion matrix. The color of a cell shows the fraction of the items with this true label.

    counts  number of items for each true label (row) and predicted label (column)
    """
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    side = 2.5 + 0.45 * min(len(labels), 40)
    drawing = Figure(figsize=(side + 1, side), layout="constrained")
    panel = drawing.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    drawing.colorbar(image, ax=panel, label="fraction of the true label")
    style: JsonObject = {"fontsize": min(9, 360 / len(labels)), "parse_math": False}
    names = [label if len(label) <= 24 else f"{label[:23]}…" for label in labels]
    panel.set_xticks(range(len(labels)), names, rotation=60, ha="right", **style)
    panel.set_yticks(range(len(labels)), names, **style)
    panel.set(xlabel="predicted label", ylabel="true label")
    for (row, column), count in np.ndenumerate(counts if len(labels) <= COUNTED else counts[:0]):
        color = "white" if shares[row, column] > 0.5 else "black"
        panel.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=8)
    save(drawing, path)


def draw_sheet(path: str | Path, pictures: Sequence[tuple[Image.Image, str]]) -> None:
    """Draw images in a grid, each with a caption."""
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    rows = max(1, -(-len(pictures) // COLUMNS))
    drawing = Figure(figsize=(1.5 * COLUMNS, 1.8 * rows), layout="constrained")
    panels = list(drawing.subplots(rows, COLUMNS, squeeze=False).flat)
    for panel in panels:
        panel.axis("off")
    for panel, (image, caption) in zip(panels, pictures, strict=False):
        panel.imshow(image, cmap="gray" if image.mode == "L" else None)
        panel.set_title(caption, fontsize=7, parse_math=False, wrap=True)
    save(drawing, path)
