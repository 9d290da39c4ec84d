"""Picture of the attention of one query over an image. Colors show multiples of a uniform distribution over patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.analysis.maps.layers import Layer
from manyheads.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize


# Colors over the grey image: the first for attention above uniform, the second for negative weights.
Color = tuple[float, float, float]
HEAT, COLD = (1.0, 0.45, 0.0), (0.0, 0.43, 1.0)
OPAQUE = 0.9
# Minimum for the end of the color scale, as a multiple of uniform attention. Without it, noise in nearly uniform heads
# would get full color.
FULL = 4
TICKS = (1, 2, 4, 10, 20, 50, 100, 200, 500, 1000)  # ticks of the color bar, as multiples of uniform attention


class ImageMaps:
    """Attention maps of one query in layers whose queries and keys are image patches.

    query     index of the query token; None: the class token, otherwise the patch in the middle
    picture   preprocessed image, (Y, X) or (Y, X, 3) uint8
    shares    true if the weights of each query sum to one; then colors show multiples of uniform attention
    colors    color map for weights or multiples, with one scale for all layers and heads
    subtitle  description of the query and of the values in the picture

    Raises UserError for a query that a layer does not have.
    """

    def __init__(self, layers: Sequence[Layer], query: int | None, picture: NDArray[np.uint8] | None) -> None:
        self.shares = all(layer.shares for layer in layers)
        self._layers = layers
        self._queries = [_query(layer, query) for layer in layers]
        self._grids = [_over_patches(layer, at) for layer, at in zip(layers, self._queries, strict=True)]
        self._even = [1 / len(layer.keys) if self.shares else 1.0 for layer in layers]
        self._gray = None if picture is None else muted(picture)
        self.colors = self._scale()
        names = {_name(layer, at) for layer, at in zip(layers, self._queries, strict=True)}
        who = names.pop() if len(names) == 1 else "the patch in the middle of each layer's grid"
        number = "largest fraction on one patch" if self.shares else "largest weight"
        self.subtitle = f"attention of {who}; the number below a map is the {number}"

    def draw(self, panel: Axes, layer: int, head: int) -> None:
        """Draw the attention map of one head in color over the grey image."""
        from matplotlib.patches import Rectangle

        if self._gray is not None:
            panel.imshow(self._gray, cmap="gray", extent=(0, 1, 1, 0), vmin=0, vmax=255)
        grid, sides = self._grids[layer][head], self._layers[layer]
        down, across = sides.keys.cover
        heat = self.colors.to_rgba(grid / self._even[layer])  # (rows, columns, 4)
        panel.imshow(heat, extent=(0, across, down, 0), interpolation="nearest")
        assert sides.queries.grid is not None
        rows, columns = sides.queries.grid
        patch = self._queries[layer] - _tokens_before_patches(sides)
        if patch >= 0:
            corner = (patch % columns / columns, patch // columns / rows)
            for ink, width in (("black", 2.4), ("white", 1.2)):
                outline = Rectangle(corner, 1 / columns, 1 / rows, fill=False, edgecolor=ink, linewidth=width)
                panel.add_patch(outline)
        largest = float(grid.max())
        panel.set_xlabel(percent(largest) if self.shares else f"{largest:.2g}", fontsize=7, labelpad=2)
        panel.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])

    def label(self, bar: Colorbar) -> None:
        from matplotlib.ticker import NullLocator

        if not self.shares:
            bar.set_label("weight", fontsize=8)
            return
        ticks = [tick for tick in TICKS if tick <= self.colors.get_clim()[1]]
        bar.set_ticks(ticks, labels=[f"{tick}x" for tick in ticks], minor=False)
        bar.ax.xaxis.set_minor_locator(NullLocator())
        even = {percent(share) for share in self._even}
        bar.set_label("times uniform attention" + (f" ({even.pop()})" if len(even) == 1 else ""), fontsize=8)

    def _scale(self) -> ScalarMappable:
        from matplotlib.colors import LogNorm, Normalize

        largest = (float(np.abs(grid).max()) / even for grid, even in zip(self._grids, self._even, strict=True))
        most = max(largest) or 1.0
        return heat_scale(LogNorm(1, max(most, FULL), clip=True) if self.shares else Normalize(-most, most))


def heat_scale(norm: Normalize, heat: Color = HEAT, cold: Color = COLD) -> ScalarMappable:
    """Return the color map for values in the limits of `norm`, with the color `cold` for values below zero.

    The strength of a color grows with the distance from zero, or from the lower limit if it is not negative.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap

    stops = [(0.0, (*heat, 0.0)), (1.0, (*heat, OPAQUE))]
    if norm.vmin is not None and norm.vmin < 0:
        stops = [(0.0, (*cold, OPAQUE)), (0.5, (*cold, 0.0)), (0.5, (*heat, 0.0)), (1.0, (*heat, OPAQUE))]
    return ScalarMappable(norm, LinearSegmentedColormap.from_list("heat", stops))


def muted(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image in gray, (Y, X), with less contrast, because colors are hard to see on black and white."""
    return (40 + np.asarray(Image.fromarray(picture).convert("L")) * 0.75).astype(np.uint8)


def percent(value: float) -> str:
    return f"{value:.0%}" if value >= 0.0995 or value == 0 else f"{value:.1%}"


def _query(layer: Layer, query: int | None) -> int:
    count, before = len(layer.queries), _tokens_before_patches(layer)
    assert layer.queries.grid is not None
    rows, columns = layer.queries.grid
    at = (0 if before else rows // 2 * columns + columns // 2) if query is None else query
    if not 0 <= at < count:
        raise UserError(f"token {at} does not exist: valid are 0 to {count - 1}")
    return at


def _tokens_before_patches(layer: Layer) -> int:
    """Return the number of query tokens that precede the image patches, such as the class token."""
    assert layer.queries.grid is not None
    return len(layer.queries) - layer.queries.grid[0] * layer.queries.grid[1]


def _name(layer: Layer, query: int) -> str:
    token = layer.queries.tokens[query]
    return token if query < _tokens_before_patches(layer) else f"row {token.replace(',', ', column ')} (framed)"


def _over_patches(layer: Layer, query: int) -> NDArray[np.float32]:
    """Return the attention weights from the query token to the image patches, (H, rows, columns)."""
    assert layer.keys.grid is not None
    rows, columns = layer.keys.grid
    return layer.weights[0, :, query, len(layer.keys) - rows * columns :].reshape(-1, rows, columns)
