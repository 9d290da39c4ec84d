"""Named heat maps: the result of detectors of heads, of patching, of logit attribution and of explanations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.drawing import new_figure, save_and_report, short_name, shortened
from manyheads.analysis.maps import AttentionMaps
from manyheads.displays import html_table
from manyheads.errors import UserError
from manyheads.files import JsonObject, replacing, write

LISTED = 5  # number of cells of each heat map that the text form lists, the largest first
NUMBERED = 300  # maximum number of cells of a heat map whose values a picture prints
LONGEST = 100  # maximum number of rows or columns in a picture


class Panel(NamedTuple):
    """Heat map (R, C) with the names of its rows and columns.

    picture  image that the heat map covers, (Y, X) or (Y, X, C); None without an image
    cover    fraction of the image that the heat map covers, down and across
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[np.float64]
    picture: NDArray[np.uint8] | None = None
    cover: tuple[float, float] = (1.0, 1.0)

    def largest(self, count: int) -> list[tuple[str, str, float]]:
        """Return the row, the column and the value of the cells with the largest absolute values, largest first."""
        order = np.argsort(-np.abs(self.values), axis=None, kind="stable")[:count]
        cells = (np.unravel_index(index, self.values.shape) for index in order)
        return [(self.rows[row], self.columns[column], float(self.values[row, column])) for row, column in cells]


@dataclass(frozen=True, repr=False)
class HeatMaps:
    """Heat maps of one analysis of a model.

    model    name of the model
    title    description of the input
    unit     meaning of the values, for the color bar
    panels   the heat maps
    heading  name of the analysis, for a page
    """

    heading: ClassVar[str] = "Heat maps"

    model: str
    title: str
    unit: str
    panels: tuple[Panel, ...]

    def __getitem__(self, title: str) -> NDArray[np.float64]:
        """Return the values (R, C) of the heat map with this title."""
        by_title = {panel.title: panel.values for panel in self.panels}
        if title not in by_title:
            raise UserError(f"no heat map {title!r}: expected one of {', '.join(by_title)}")
        return by_title[title]

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.title!r} ({', '.join(panel.title for panel in self.panels)})"

    def __str__(self) -> str:
        return "\n".join("\t".join(row) for row in self.rows())

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        return html_table(head, rows)

    def rows(self, count: int = LISTED) -> list[list[str]]:
        """Return a text table of the largest cells of each heat map, below the names of the columns."""
        return [["", "", "", self.unit]] + [
            [panel.title, row, column, f"{value:.3f}"]
            for panel in self.panels for row, column, value in panel.largest(count)
        ]  # fmt: skip

    def document(self) -> JsonObject:
        """Return all heat maps as JSON data."""
        maps = [
            {"title": panel.title, "rows": [*panel.rows], "columns": [*panel.columns], "values": panel.values.tolist()}
            for panel in self.panels
        ]
        return {"model": self.model, "title": self.title, "unit": self.unit, "maps": maps}

    def finding(self) -> JsonObject:
        """Return the heat maps as data of a page."""
        from manyheads.analysis.maps.page import picture_fields

        document = self.document()
        for panel, shown in zip(self.panels, document["maps"], strict=True):
            shown["values"] = [[float(f"{value:.4g}") for value in row] for row in shown["values"]]
            shown |= {"cover": panel.cover, **picture_fields(panel.picture)}
        return {**document, "heading": self.heading, "model": short_name(self.model)}

    def page(self, path: str | Path, *maps: AttentionMaps) -> list[str]:
        """Write an interactive HTML page that needs no other file. Returns notes about omitted parts.

        maps  attention maps of the inputs, which the page shows below
        """
        from manyheads.analysis.maps.page import page

        html, notes = page(maps, findings=[self.finding()])
        write(Path(path), html)
        return notes

    def save(self, path: str | Path) -> None:
        """Write an .npz file: for each heat map, its values, and the names of its rows and columns."""
        arrays: dict[str, NDArray[np.float64] | NDArray[np.str_]] = {}
        for panel in self.panels:
            name = panel.title.replace(" ", "_")
            arrays |= {
                name: panel.values,
                f"{name}.rows": np.array(panel.rows),
                f"{name}.columns": np.array(panel.columns),
            }
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def draw(self, path: str | Path) -> list[str]:
        """Draw all heat maps below each other, PNG, SVG or PDF. Blue is above zero, red is below.

        Returns notes about characters that the font lacks. Raises UserError for too many rows or columns.
        """
        if (most := max(max(panel.values.shape) for panel in self.panels)) > LONGEST:
            raise UserError(f"found {most} rows or columns, and a picture has at most {LONGEST}: write arrays (.npz)")
        limit = max(1.0, *(float(np.abs(panel.values).max()) for panel in self.panels))
        high = [0.9 + 0.3 * len(panel.rows) for panel in self.panels]
        wide = 2.5 + 0.45 * max(len(panel.columns) for panel in self.panels)
        figure = new_figure(max(wide, 6), sum(high))
        axes = figure.subplots(len(self.panels), height_ratios=high, squeeze=False)[:, 0]
        for axis, panel in zip(axes, self.panels, strict=True):
            image = axis.imshow(panel.values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
            style: JsonObject = {"fontsize": 8, "parse_math": False}
            axis.set_xticks(range(len(panel.columns)), map(shortened, panel.columns), rotation=45, ha="right", **style)
            axis.set_yticks(range(len(panel.rows)), map(shortened, panel.rows), **style)
            axis.set_title(panel.title, fontsize=10, parse_math=False)
            axis.tick_params(length=0)
            for (row, column), value in np.ndenumerate(panel.values):
                if panel.values.size > NUMBERED:
                    break
                color = "white" if abs(value) > 0.6 * limit else "black"
                axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize=7)
        figure.suptitle(f"{short_name(self.model)}: {self.title}", fontsize=10, parse_math=False, wrap=True)
        figure.colorbar(image, ax=list(axes), pad=0.01, label=self.unit)
        return save_and_report(figure, path, "the arrays")
