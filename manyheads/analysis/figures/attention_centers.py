"""Where the heads of an attention over pixels look: their centres and widths, and their mean maps.

The figures 3 to 6 of Cordonnier, Loukas & Jaggi 2020, as data and as pictures (PNG or SVG, by the file's name). On the
terminal: `manyheads draw centers MODEL` and `manyheads draw maps MODEL IMAGES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from manyheads.analysis.drawing import HUES, save
from manyheads.core.runtime import eval_mode
from manyheads.core.tap import record, tapped
from manyheads.errors import UserError, extra
from manyheads.models.conv_attention import ConvAttention, QuadraticAttention

SHARES = (0.5, 0.9)  # of a head's attention that the circles hold
LINES = ("-", ":")  # of the circles
COLUMNS = 4  # of panels


@dataclass(frozen=True)
class Centers:
    """Of every layer (by name) and head: the shift that it looks at, and how wide it looks, in pixels of its grid.

    centres  (L, H, 2) down and to the right of the query
    widths   (L, H) the standard deviation along an axis
    """

    layers: tuple[str, ...]
    centers: Tensor
    widths: Tensor

    def __str__(self) -> str:
        lines = [f"{'layer':24} head   down  right  width"]
        for layer, centers, widths in zip(self.layers, self.centers, self.widths, strict=True):
            for head, ((down, right), width) in enumerate(zip(centers.tolist(), widths.tolist(), strict=True)):
                lines.append(f"{layer:24} {head:4} {down:6.2f} {right:6.2f} {width:6.2f}")
        return "\n".join(lines)


@dataclass(frozen=True)
class MeanMaps:
    """What each head looks at from one query pixel, the mean over images.

    maps   (L, H, Y, X), each sums to one
    query  (row, column) in that grid
    """

    layers: tuple[str, ...]
    maps: Tensor
    query: tuple[int, int]
    images: int

    def centers(self) -> Centers:
        """The mean and the standard deviation of each map: those of a head's Gaussian, where the image holds it."""
        rows, columns = self.maps.shape[-2:]
        down = torch.arange(rows, device=self.maps.device) - self.query[0]
        right = torch.arange(columns, device=self.maps.device) - self.query[1]
        at = torch.cartesian_prod(down, right).view(-1, 2).to(self.maps.dtype)  # (T, 2)
        weights = self.maps.flatten(2)  # (L, H, T)
        centers = weights @ at  # (L, H, 2)
        distances = (at - centers[:, :, None]).square().sum(-1)  # (L, H, T)
        return Centers(self.layers, centers, ((weights * distances).sum(-1) / 2).sqrt())


def learned_centers(model: nn.Module) -> Centers:
    """The centres and widths that a model of quadratic positions has learned: its parameters, no image is needed.

    Raises UserError for a model whose heads have none.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, QuadraticAttention)}
    if not layers:
        raise UserError(f"the heads of this {type(model).__name__} have no centres: expected quadratic positions")
    centers = torch.stack([layer.centres.detach() for layer in layers.values()])  # (L, H, 2)
    sharpness = torch.stack([layer.sharpness.detach() for layer in layers.values()])  # (L, H)
    return Centers(tuple(layers), centers, 1 / sharpness.abs())


def mean_maps(
    model: ConvAttention, images: Tensor, query: tuple[int, int] | None = None, *, batch: int = 25
) -> MeanMaps:
    """The maps of every layer and head, the mean over images (N, C, Y, X), normalised as for training.

    query  (row, column) among the tokens, of which there is one for 2 x 2 pixels; None: the middle one
    batch  so many images at once; the result does not depend on it
    """
    if not len(images):
        raise UserError("there are no images to take the mean over: give one or more")
    rows, columns = model.grid(images)
    row, column = query = (rows // 2, columns // 2) if query is None else query
    if not (0 <= row < rows and 0 <= column < columns):
        raise UserError(f"the query {row}, {column} lies outside: rows are 0 to {rows - 1}, columns 0 to {columns - 1}")
    layers = tuple(tapped(model))
    total = torch.zeros((), device=images.device)
    with eval_mode(model):
        for part in images.split(batch):
            with record(model, queries=[row * columns + column]) as maps:
                model(part)
            # a map that does not depend on the images has a batch of one, so the mean over the batch holds for it, too
            total = total + len(part) * torch.stack([maps[layer][0].mean(0) for layer in layers])  # (L, H, 1, T)
    return MeanMaps(layers, (total / len(images)).squeeze(2).unflatten(-1, (rows, columns)), query, len(images))


def draw_centers(centers: Centers, path: str | Path, *, panels: Sequence[str] | None = None, title: str = "") -> None:
    """Figure 4: a panel for each layer, a colour for each head; the circles hold half and nine tenths of what it sees.

    The black square is the query pixel.

    panels  what they are called; None: layer 0, 1, ... Of one layer in the course of training, what its states are
    """
    with extra("analysis", "a picture"):
        from matplotlib import colormaps
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import Circle
        from matplotlib.ticker import MaxNLocator

    layers, heads = centers.widths.shape
    few = [*HUES, "#000000", "#999999", "#882255", "#332288"]  # that every colour vision tells apart, or nearly
    hues = few if heads <= len(few) else [colormaps["viridis"](head / (heads - 1)) for head in range(heads)]
    rows = -(-layers // COLUMNS)
    columns = -(-layers // rows)
    figure = Figure(figsize=(2.6 * columns + 2.4, 2.7 * rows + 0.6), layout="compressed")
    places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    radii = [sqrt(-2 * log(1 - share)) for share in SHARES]  # in widths, of a Gaussian in two dimensions
    reach = float(centers.centers.abs().max() + radii[0] * centers.widths.median()) + 1
    # a head that looks everywhere has a width without bound: its circles leave the picture
    widths = centers.widths.clamp(max=4 * reach)
    for layer, panel in enumerate(places.flat):
        if layer >= layers:
            panel.axis("off")
            continue
        for head, (down, right) in enumerate(centers.centers[layer].tolist()):
            for radius, line in zip(radii, LINES, strict=True):
                size = radius * float(widths[layer, head])
                panel.add_patch(Circle((right, down), size, fill=False, ls=line, ec=hues[head]))
            panel.plot(right, down, ".", color=hues[head])
        panel.plot(0, 0, "s", color="black")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True))
        panel.set_title(f"layer {layer}" if panels is None else panels[layer], fontsize=9)
        panel.set(box_aspect=1, xlim=(-reach, reach), ylim=(reach, -reach))
    figure.supxlabel("to the right of the query, in pixels of the layer's grid", fontsize=9)
    figure.supylabel("down from the query", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=10, parse_math=False)
    key = [Line2D([], [], color="black", marker="s", ls="", label="query")]
    key += [
        Line2D([], [], color="0.3", ls=line, label=f"{share:.0%} of a head's attention")
        for share, line in zip(SHARES, LINES, strict=True)
    ]
    key += [Line2D([], [], color=hues[head], marker=".", label=f"head {head}") for head in range(heads)]
    figure.legend(handles=key, loc="outside right upper", fontsize=7, frameon=False, ncols=1 + len(key) // 13)
    save(figure, path)


def draw_maps(means: MeanMaps, path: str | Path, *, title: str = "") -> None:
    """Figures 5 and 6: a row for each layer, a column for each head, the query pixel marked; black is no attention. All
    maps have one scale."""
    with extra("analysis", "a picture"):
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter

    layers, heads = means.maps.shape[:2]
    figure = Figure(figsize=(1.1 * heads + 1.4, 1.1 * layers + 0.9), layout="constrained")
    panels = figure.subplots(layers, heads, squeeze=False)
    row, column = means.query
    maps = means.maps.float().cpu().numpy()  # (L, H, Y, X)
    for (layer, head), panel in np.ndenumerate(panels):
        image = panel.imshow(
            maps[layer, head], cmap="gray", norm=PowerNorm(0.5, 0, maps.max()), interpolation="nearest"
        )
        panel.plot(column, row, "s", mfc="none", mec=HUES[1], mew=1.5)
        panel.set(xticks=[], yticks=[])
        if layer == 0:
            panel.set_title(f"head {head}", fontsize=9)
        if head == 0:
            panel.set_ylabel(f"layer {layer}", fontsize=9)
    bar = figure.colorbar(image, ax=panels, fraction=0.05, format=PercentFormatter(1.0, decimals=0))
    bar.set_label("share of the attention of the query (framed)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    about = f"{title}, " if title else ""
    number = f"mean over {means.images:,} images" if means.images > 1 else "one image"
    figure.suptitle(f"{about}{number}", fontsize=10, parse_math=False)
    save(figure, path)
