"""Attention maps as a picture, PNG or SVG: every head at a glance, its tokens where there is room for them.

Lines are as Vaswani drew them. All maps of a picture have one scale, so that they can be compared.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from manyheads.analysis.drawing import HUES, save_and_report, short_name
from manyheads.analysis.maps.layers import Layer, RecordedMaps
from manyheads.analysis.maps.picture_of_image import ImageMaps, percent
from manyheads.analysis.maps.sides import Side
from manyheads.errors import UserError, extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure


SUFFIXES = (".png", ".svg")
NAMED = 4  # maps of a picture, up to which tokens have their names
LONGEST = 80  # tokens that have theirs
SIZE, SMALLEST = 8.0, 5.0  # points of a name; of more maps, names at the outer edges where they are no smaller
FAINT = 0.02  # of the largest weight: no line
MOST_LINES = 2**16  # of a picture: more take minutes and tens of megabytes, and cannot be told apart
PAGE = "or make a page (.html)"
TITLE_LINES = 8


def draw(
    maps: RecordedMaps,
    path: Path,
    *,
    axis: str | None = None,
    style: Literal["matrix", "lines"] = "matrix",
    query: int | None = None,
) -> list[str]:
    """Draw the maps of one axis, layers down and heads across; for fewer, ask for fewer layers and heads.

    Where positions halt, a number behind a token tells how many steps it took, and it looks nowhere in later steps.
    Returns what the picture lacks. Raises UserError for one that cannot be drawn.

    axis   None: cross-attention where there is one, else the first
    style  "lines": one picture a layer, from each query to its keys, a colour for each head; texts only
    query  of an image: the number of the token that looks; None: the class token, else the patch in the middle
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: a picture is {' or '.join(SUFFIXES)}")
    axis = axis or ("cross" if "cross" in maps.axes else next(iter(maps)))
    layers = maps[axis]
    pictured = layers[0].queries.grid is not None
    if style not in ("matrix", "lines"):
        raise UserError(f"style is {style!r}: expected 'matrix' or 'lines'")
    if style == "lines":
        _check_lines(layers, pictured)
    images = ImageMaps(layers, query, maps.picture) if pictured else None
    title = f"{axis} attention" + (f" of {short_name(maps.model)}" if maps.model else "") + f"\n{maps.title}"
    layout = _Layout.of(layers, style, title if images is None else f"{title}\n{images.subtitle}", pictured)
    figure, panels = layout.figure()
    if style == "lines":
        _draw_lines(figure, panels, layers)
    else:
        _draw_matrices(figure, panels, layout, layers, images)
    return save_and_report(figure, path, "a page (.html)")


class _Layout(NamedTuple):
    """Where panels go, in inches.

    columns  panels of a layer
    named    whether every token has its name beside each map
    heights  of each layer's panels
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
        return cls(columns, named, [height for _, height in sizes], wide, _wrapped(title, int(11 * wide)))

    def figure(self) -> tuple[Figure, Any]:
        """Return an empty figure with its title, and its panels (layers, columns)."""
        with extra("analysis", "a picture"):
            from matplotlib.figure import Figure

        high = sum(self.heights) + 1.0 + 0.17 * self.title.count("\n")
        figure = Figure(figsize=(self.wide, high), layout="constrained", facecolor="white")
        figure.suptitle(self.title, fontsize=10, parse_math=False)
        panels = figure.subplots(len(self.heights), self.columns, squeeze=False, height_ratios=self.heights)
        return figure, panels


def _draw_lines(figure: Figure, panels: Any, layers: list[Layer]) -> None:
    """Draw one panel a layer: lines from each query to its keys, a color for each head."""
    from matplotlib.lines import Line2D

    for panel, layer in zip(panels[:, 0], layers, strict=True):
        _lines(panel, layer)
        panel.set_title(f"{_called(layer, layers)}: {layer.name}", fontsize=9, parse_math=False)
    key = [Line2D([], [], color=hue, label=f"head {head}") for hue, head in zip(HUES, _longest(layers), strict=False)]
    figure.legend(handles=key, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def _draw_matrices(figure: Figure, panels: Any, layout: _Layout, layers: list[Layer], images: ImageMaps | None) -> None:
    """Draw one panel a head, layers down, with one color bar."""
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
                panel.set_ylabel(_called(layer, layers), fontsize=9)
    shrink = min(1.0, 4 / layout.wide)
    bar = figure.colorbar(colors, ax=panels, location="bottom", shrink=shrink, aspect=30, pad=0.02)
    bar.ax.tick_params(labelsize=7)
    if images is not None:
        images.label(bar)
    elif all(layer.shares for layer in layers):
        bar.ax.xaxis.set_major_formatter(lambda value, _: percent(value))
        bar.set_label("share of a query's attention", fontsize=8)
    else:
        bar.set_label("weight", fontsize=8)


def _colors(layers: list[Layer]) -> ScalarMappable:
    """From a weight to a colour: one scale for a whole picture."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    most = max(float(np.abs(layer.weights).max()) for layer in layers) or 1.0
    signed = any((layer.weights < 0).any() for layer in layers)
    return ScalarMappable(Normalize(-most if signed else 0, most), "RdBu" if signed else "Blues")


def _longest(layers: list[Layer]) -> tuple[int, ...]:
    """The heads that there are: layers may have different numbers of them."""
    return max((layer.heads for layer in layers), key=len)


def _called(layer: Layer, layers: list[Layer]) -> str:
    """As the page calls it: where depth is tied there is one layer, and its steps."""
    if layer.step is None:
        return f"layer {layer.number}"
    tied = all(other.number == layer.number for other in layers)
    return f"step {layer.step}" if tied else f"layer {layer.number}, step {layer.step}"


def _check_lines(layers: list[Layer], pictured: bool) -> None:
    """Raise UserError for what cannot be told apart as lines."""
    if pictured:
        raise UserError("lines are for texts: an image is drawn as it is")
    heads, tokens = len(_longest(layers)), max(max(layer.weights.shape[2:]) for layer in layers)
    if heads > len(HUES):
        raise UserError(
            f"lines of {heads} heads cannot be told apart, {len(HUES)} can: choose fewer (--heads 0,1), {PAGE}"
        )
    if tokens > LONGEST:
        raise UserError(f"lines between {tokens} tokens are too dense, {LONGEST} are not: shorten the text, {PAGE}")
    if (lines := sum(layer.weights.size for layer in layers)) > MOST_LINES:
        raise UserError(
            f"a picture of {lines:,} lines is too large, {MOST_LINES:,} are not: choose fewer layers or heads "
            f"(--layers 0,1, --heads 0,1), {PAGE}"
        )


def _names(side: Side) -> list[str]:
    """Tokens, with the steps that they took where they halt."""
    if side.steps is None:
        return list(side.tokens)
    return [f"{token} ({steps})" for token, steps in zip(side.tokens, side.steps, strict=True)]


def _size(layer: Layer, named: bool, style: str, columns: int) -> tuple[float, float]:
    """Inches of a panel, width and height."""
    queries, keys = len(layer.queries), len(layer.keys)
    if style == "lines":
        return 4.5, 0.5 + 0.19 * max(queries, keys)
    if not named:
        side = 1.1 if columns > 6 else 1.6
        return side, side
    return 1.5 + 0.2 * min(keys, LONGEST), 1.4 + 0.2 * min(queries, LONGEST)


def _edge_size(layer: Layer, columns: int) -> float:
    """Points that a name has beside a small map; 0 where it could not be read."""
    points = 0.8 * 72 * _size(layer, False, "matrix", columns)[0] / max(layer.weights.shape[2:])
    return min(SIZE, points) if points >= SMALLEST else 0.0


def _matrix(panel: Axes, layer: Layer, head: int, queries: float, keys: float, colors: ScalarMappable) -> None:
    """`queries` and `keys`: points of their names, 0 for none."""
    shown = np.where(layer.halted[:, None], np.nan, layer.weights[0, head])  # nothing, on grey
    panel.imshow(colors.to_rgba(shown), aspect="auto", interpolation="nearest")
    panel.set(xticks=[], yticks=[], facecolor="0.85")
    if max(shown.shape) > LONGEST:
        return
    if keys:
        panel.set_xticks(range(len(layer.keys)), _names(layer.keys), rotation=60, ha="right", rotation_mode="anchor",
                         fontsize=keys, parse_math=False)  # fmt: skip
    if queries:
        panel.set_yticks(range(len(layer.queries)), _names(layer.queries), fontsize=queries, parse_math=False)


def _lines(panel: Axes, layer: Layer) -> None:
    from matplotlib.collections import LineCollection

    weights = np.where(layer.halted[:, None], 0, layer.weights[0])  # (H, Tq, Tk)
    most = float(np.abs(weights).max()) or 1.0
    for head, part in enumerate(np.abs(weights) / most):
        q, k = np.nonzero(part > FAINT)
        shares = part[q, k]
        ends = np.stack([np.stack([np.zeros(len(q)), q], 1), np.stack([np.ones(len(k)), k], 1)], 1)  # (N, 2, 2)
        panel.add_collection(LineCollection(list(ends), colors=HUES[head], alpha=shares, linewidths=0.4 + 2 * shares))
    for at, (token, halted) in enumerate(zip(_names(layer.queries), layer.halted, strict=True)):
        ink = "0.6" if halted else "black"
        panel.text(-0.03, at, token, ha="right", va="center", fontsize=8, color=ink, parse_math=False)
    for at, token in enumerate(_names(layer.keys)):
        panel.text(1.03, at, token, ha="left", va="center", fontsize=8, parse_math=False)
    panel.set(xlim=(-0.8, 1.8), ylim=(max(weights.shape[1:]) - 0.4, -0.6), xticks=[], yticks=[])
    panel.spines[:].set_visible(False)


def _wrapped(text: str, width: int) -> str:
    """In lines of so many characters; of a text that is longer than a title can be, the beginning."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, max(width, 20))]
    return "\n".join(lines if len(lines) <= TITLE_LINES else [*lines[: TITLE_LINES - 1], lines[TITLE_LINES - 1] + " …"])
