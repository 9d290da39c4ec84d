"""Attention maps as a static picture, PNG, SVG or PDF, with one panel per head.

The style "lines" follows the figures of Vaswani et al. 2017. All maps of a picture have the same color scale.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.drawing import HUES, new_figure, save_and_report, short_name
from manyheads.analysis.maps.layers import Layer, RecordedMaps
from manyheads.analysis.maps.picture_of_image import ImageMaps, percent
from manyheads.analysis.maps.sides import Side
from manyheads.errors import UserError
from manyheads.files import PICTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure


NAMED = 4  # maximum number of maps in a picture that shows token names at each map
LONGEST = 80  # maximum number of tokens for which names are drawn
# Font size of token names in points: the default, and the minimum for names at the outer edges of many maps.
SIZE, SMALLEST = 8.0, 5.0
FAINT = 0.02  # attention weights below this fraction of the maximum weight get no line
# Maximum number of lines. More lines take minutes and tens of megabytes, and cannot be distinguished.
MOST_LINES = 2**16
PAGE = "or write a page (.html)"
TITLE_LINES = 8


def draw(
    maps: RecordedMaps,
    path: Path,
    *,
    axis: str | None = None,
    style: Literal["matrix", "lines"] = "matrix",
    query: int | None = None,
) -> list[str]:
    """Draw the attention maps of one axis (kind of attention), with a row per layer and a column per head.

    Returns notes about characters that the font lacks. For a model with adaptive halting, the number after a token is
    the number of steps for this token. In the maps of later steps, the row of a halted token is grey.

    axis   "encoder", "decoder", "cross" or "self". By default, cross-attention if present, otherwise the first axis
    style  "matrix" for one heat map per head. "lines" for one panel per layer, with lines from each query to its keys
           and a color per head, for texts only
    query  index of the query token, for an image. By default, the class token, otherwise the patch in the middle

    Raises UserError for a picture that cannot be drawn.
    """
    if path.suffix.lower() not in PICTURES:
        raise UserError(f"{path}: expected a name that ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    axis = axis or ("cross" if "cross" in maps.axes else next(iter(maps)))
    layers = maps[axis]
    pictured = layers[0].queries.grid is not None
    if style not in ("matrix", "lines"):
        raise UserError(f"style is {style!r}: expected 'matrix' or 'lines'")
    if style == "lines":
        _check_lines(layers, pictured)
    images = ImageMaps(layers, query, maps.picture) if pictured else None
    title = f"{axis} attention" + (f" of {short_name(maps.model)}" if maps.model else "") + f"\n{maps.title}"
    if maps.prediction:
        title += "\nprediction: " + ", ".join(f"{label} {percent(share)}" for label, share in maps.prediction)
    layout = _Layout.of(layers, style, title if images is None else f"{title}\n{images.subtitle}", pictured)
    figure, panels = layout.figure()
    if style == "lines":
        _draw_lines(figure, panels, layers)
    else:
        _draw_matrices(figure, panels, layout, layers, images)
    return save_and_report(figure, path, "a page (.html)")


class _Layout(NamedTuple):
    """Positions and sizes in inches of the panels of a picture.

    columns  number of panels per layer
    named    true if every map shows the names of its tokens
    heights  height of the panels of each layer
    """

    columns: int
    named: bool
    heights: list[float]
    wide: float
    title: str

    @classmethod
    def of(cls, layers: list[Layer], style: str, title: str, pictured: bool) -> Self:
        columns = 1 if style == "lines" else max(len(layer.heads) for layer in layers)
        named = len(layers) * columns <= NAMED and not pictured
        sizes = [_size(layer, named, style, columns) for layer in layers]
        wide = max(max(width for width, _ in sizes) * columns + 0.5, 3.5)
        return cls(columns, named, [height for _, height in sizes], wide, _wrap_title(title, int(11 * wide)))

    def figure(self) -> tuple[Figure, NDArray[np.object_]]:
        """Return an empty figure with its title, and an array of its panels, (layers, columns)."""
        high = sum(self.heights) + 1.0 + 0.17 * self.title.count("\n")
        figure = new_figure(self.wide, high)
        figure.suptitle(self.title, fontsize=10, parse_math=False)
        panels = figure.subplots(len(self.heights), self.columns, squeeze=False, height_ratios=self.heights)
        return figure, panels


def _draw_lines(figure: Figure, panels: NDArray[np.object_], layers: list[Layer]) -> None:
    """Draw one panel per layer: lines from each query token to its key tokens, with a color for each head."""
    from matplotlib.lines import Line2D

    for panel, layer in zip(panels[:, 0], layers, strict=True):
        _lines(panel, layer)
        panel.set_title(f"{_layer_title(layer, layers)}: {layer.name}", fontsize=9, parse_math=False)
    key = [Line2D([], [], color=hue, label=f"head {head}") for hue, head in zip(HUES, _all_heads(layers), strict=False)]
    figure.legend(handles=key, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def _draw_matrices(
    figure: Figure, panels: NDArray[np.object_], layout: _Layout, layers: list[Layer], images: ImageMaps | None
) -> None:
    """Draw the attention maps as heat maps, one panel per head and one row per layer, with one color bar."""
    colors = _colors(layers) if images is None else images.colors
    for row, layer in enumerate(layers):
        for column in range(layout.columns):
            panel: Axes = panels[row, column]
            if column >= len(layer.heads):
                panel.axis("off")
                continue
            if images is not None:
                images.draw(panel, row, column)
            else:
                edge = SIZE if layout.named else _edge_size(layer, layout.columns)
                below = layout.named or row == len(layers) - 1 or column >= len(layers[row + 1].heads)
                left = edge if layout.named or column == 0 else 0.0
                _matrix(panel, layer, column, left, edge if below else 0.0, colors)
            if row == 0:
                panel.set_title(f"head {layer.heads[column]}", fontsize=9)
            if column == 0:
                panel.set_ylabel(_layer_title(layer, layers), fontsize=9)
    shrink = min(1.0, 4 / layout.wide)
    bar = figure.colorbar(colors, ax=panels, location="bottom", shrink=shrink, aspect=30, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    if images is not None:
        images.label(bar)
    elif all(layer.shares for layer in layers):
        bar.ax.xaxis.set_major_formatter(lambda value, _: percent(value))
        bar.set_label("fraction of a query's attention", fontsize=8)
    else:
        bar.set_label("weight", fontsize=8)


def _colors(layers: list[Layer]) -> ScalarMappable:
    """Return the color map, with one scale for all attention maps of a picture."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    most = max(float(np.abs(layer.weights).max()) for layer in layers) or 1.0
    if all(layer.shares for layer in layers):  # The scale ends at four times a uniform weight or more, which is pale.
        most = max(most, min(1.0, 4 / max(len(layer.keys) for layer in layers)))
    signed = any((layer.weights < 0).any() for layer in layers)
    return ScalarMappable(Normalize(-most if signed else 0, most), "RdBu" if signed else "Blues")


def _all_heads(layers: list[Layer]) -> tuple[int, ...]:
    """Return the head indices of the layer that has the largest number of heads."""
    return max((layer.heads for layer in layers), key=len)


def _layer_title(layer: Layer, layers: list[Layer]) -> str:
    """Return the title of a layer, as on the HTML page.

    For a layer that is applied several times, the title has the step.
    """
    if layer.step is None:
        return f"layer {layer.number}"
    tied = all(other.number == layer.number for other in layers)
    return f"step {layer.step}" if tied else f"layer {layer.number}, step {layer.step}"


def _check_lines(layers: list[Layer], pictured: bool) -> None:
    """Raise UserError if the picture would have so many lines that a reader could not distinguish them."""
    if pictured:
        raise UserError("style 'lines' applies to texts: use 'matrix' for an image")
    heads, tokens = len(_all_heads(layers)), max(max(layer.weights.shape[2:]) for layer in layers)
    if heads > len(HUES):
        raise UserError(
            f"lines of {heads} heads cannot be distinguished: select at most {len(HUES)} (--heads 0,1), {PAGE}"
        )
    if tokens > LONGEST:
        raise UserError(
            f"lines between {tokens} tokens cannot be distinguished: shorten the text to {LONGEST} tokens, {PAGE}"
        )
    if (lines := sum(layer.weights.size for layer in layers)) > MOST_LINES:
        raise UserError(
            f"a picture of {lines:,} lines is too large, expected at most {MOST_LINES:,}: select fewer layers or heads "
            f"(--layers 0,1, --heads 0,1), {PAGE}"
        )


def _token_labels(side: Side) -> list[str]:
    """Return the token names, followed by the number of steps if the model has adaptive halting."""
    if side.steps is None:
        return list(side.tokens)
    return [f"{token} ({steps})" for token, steps in zip(side.tokens, side.steps, strict=True)]


def _size(layer: Layer, named: bool, style: str, columns: int) -> tuple[float, float]:
    """Return the width and height of a panel in inches."""
    queries, keys = len(layer.queries), len(layer.keys)
    if style == "lines":
        return 4.5, 0.5 + 0.19 * max(queries, keys)
    if not named:
        side = 1.1 if columns > 6 else 1.6
        return side, side
    return 1.5 + 0.2 * min(keys, LONGEST), 1.4 + 0.2 * min(queries, LONGEST)


def _edge_size(layer: Layer, columns: int) -> float:
    """Return the font size in points of token names at the edge of a small attention map.

    The size is 0 if the names would be unreadable.
    """
    points = 0.8 * 72 * _size(layer, False, "matrix", columns)[0] / max(layer.weights.shape[2:])
    return min(SIZE, points) if points >= SMALLEST else 0.0


def _matrix(panel: Axes, layer: Layer, head: int, queries: float, keys: float, colors: ScalarMappable) -> None:
    """Draw one attention map as a heat map.

    queries, keys  font sizes of the names of query and key tokens in points; 0 for no names
    """
    # NaN makes the rows of halted query tokens grey.
    shown = np.where(layer.halted[:, None], np.nan, layer.weights[0, head])
    panel.imshow(colors.to_rgba(shown), aspect="auto", interpolation="nearest")
    panel.set(xticks=[], yticks=[], facecolor="0.85")
    if max(shown.shape) > LONGEST:
        return
    if keys:
        panel.set_xticks(range(len(layer.keys)), _token_labels(layer.keys), rotation=60, ha="right",
                         rotation_mode="anchor", fontsize=keys, parse_math=False)  # fmt: skip
    if queries:
        panel.set_yticks(range(len(layer.queries)), _token_labels(layer.queries), fontsize=queries, parse_math=False)


def _lines(panel: Axes, layer: Layer) -> None:
    from matplotlib.collections import LineCollection

    weights = np.where(layer.halted[:, None], 0, layer.weights[0])  # (H, Tq, Tk)
    most = float(np.abs(weights).max()) or 1.0
    for head, part in enumerate(np.abs(weights) / most):
        q, k = np.nonzero(part > FAINT)
        shares = part[q, k]
        ends = np.stack([np.stack([np.zeros(len(q)), q], 1), np.stack([np.ones(len(k)), k], 1)], 1)  # (N, 2, 2)
        panel.add_collection(LineCollection(list(ends), colors=HUES[head], alpha=shares, linewidths=0.4 + 2 * shares))
    for at, (token, halted) in enumerate(zip(_token_labels(layer.queries), layer.halted, strict=True)):
        ink = "0.6" if halted else "black"
        panel.text(-0.03, at, token, ha="right", va="center", fontsize=8, color=ink, parse_math=False)
    for at, token in enumerate(_token_labels(layer.keys)):
        panel.text(1.03, at, token, ha="left", va="center", fontsize=8, parse_math=False)
    panel.set(xlim=(-0.8, 1.8), ylim=(max(weights.shape[1:]) - 0.4, -0.6), xticks=[], yticks=[])
    panel.spines[:].set_visible(False)


def _wrap_title(text: str, width: int) -> str:
    """Wrap a title at `width` characters. Keep at most TITLE_LINES lines."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, max(width, 20))]
    return "\n".join(lines if len(lines) <= TITLE_LINES else [*lines[: TITLE_LINES - 1], lines[TITLE_LINES - 1] + " …"])
