"""Centers and widths of attention heads that attend over pixels, and their mean attention maps.

They reproduce figures 3 to 6 of Cordonnier, Loukas & Jaggi 2020, as data and as pictures (PNG or SVG by the suffix).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import manyheads
from manyheads.analysis.drawing import HUES, save
from manyheads.core.recording import record, tapped
from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError, extra
from manyheads.models.conv_attention import ConvAttention, QuadraticAttention
from manyheads.tasks.images.image_rows import image_rows
from manyheads.tasks.images.predictor import ImageEncoder
from manyheads.training.run_directory import KEPT

SHARES = (0.5, 0.9)  # fractions of a head's attention that lie within the drawn circles
LINES = ("-", ":")  # line style of the circle for each of these fractions
COLUMNS = 4  # maximum number of panels in a row of the figure


@dataclass(frozen=True)
class Centers:
    """Attention center and width of each head in each layer, in pixels of the layer's grid.

    centers  (L, H, 2) mean shift from the query pixel to the attended pixel, down and to the right
    widths   (L, H) standard deviation of the attended position in one dimension (height or width)
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
    """Attention maps of each head for one query pixel, averaged over images.

    maps   (L, H, Y, X), where each map sums to one
    query  (row, column) of the query in the grid of Y rows and X columns
    """

    layers: tuple[str, ...]
    maps: Tensor
    query: tuple[int, int]
    images: int

    def centers(self) -> Centers:
        """Return the mean and standard deviation of the attended position for each attention map.

        For a Gaussian attention pattern within the image, these are the parameters of the Gaussian.
        """
        rows, columns = self.maps.shape[-2:]
        down = torch.arange(rows, device=self.maps.device) - self.query[0]
        right = torch.arange(columns, device=self.maps.device) - self.query[1]
        at = torch.cartesian_prod(down, right).view(-1, 2).to(self.maps.dtype)  # (T, 2)
        weights = self.maps.flatten(2)  # (L, H, T)
        centers = weights @ at  # (L, H, 2)
        distances = (at - centers[:, :, None]).square().sum(-1)  # (L, H, T)
        return Centers(self.layers, centers, ((weights * distances).sum(-1) / 2).sqrt())


def learned_centers(model: nn.Module) -> Centers:
    """Return the attention centers and widths that a model with quadratic positional attention has learned.

    No image is needed, because this attention depends on positions only. Raises UserError for other models.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, QuadraticAttention)}
    if not layers:
        raise UserError(
            f"the heads of this {type(model).__name__} have no centers: expected quadratic positional attention"
        )
    centers = torch.stack([layer.centers.detach() for layer in layers.values()])  # (L, H, 2)
    sharpness = torch.stack([layer.sharpness.detach() for layer in layers.values()])  # (L, H)
    return Centers(tuple(layers), centers, 1 / sharpness.abs())


def mean_maps(
    model: ConvAttention, images: Tensor, query: tuple[int, int] | None = None, *, batch: int = 25
) -> MeanMaps:
    """Return the attention maps of every layer and head, averaged over normalized images (N, C, Y, X).

    query  (row, column) of the query token, where a token stands for 2 x 2 pixels; default: the middle token
    batch  number of images per forward pass; does not change the result
    """
    if not len(images):
        raise UserError("no images: expected one or more")
    rows, columns = model.grid(images)
    row, column = query = (rows // 2, columns // 2) if query is None else query
    if not (0 <= row < rows and 0 <= column < columns):
        raise UserError(
            f"query {row}, {column} is outside the grid: expected rows 0 to {rows - 1} and columns 0 to {columns - 1}"
        )
    layers = tuple(tapped(model))
    total = torch.zeros((), device=images.device)
    with eval_mode(model):
        for part in images.split(batch):
            with record(model, queries=[row * columns + column]) as maps:
                model(part)
            # An attention map that does not depend on the images has batch size one, and the mean over the batch is
            # still right. The result has the maps of all layers and heads for one query, (L, H, 1, T).
            total = total + len(part) * torch.stack([maps[layer][0].mean(0) for layer in layers])
    return MeanMaps(layers, (total / len(images)).squeeze(2).unflatten(-1, (rows, columns)), query, len(images))


def mean_maps_of(
    encoder: ImageEncoder, inputs: Sequence[str], max_images: int, at: tuple[int, ...] | None = None
) -> MeanMaps:
    """Return the mean attention maps of a model over a data set or image files.

    at  (y, x) of the query in pixels of the resized image; None: the middle
    """
    if not isinstance(encoder.model, ConvAttention):
        raise UserError(f"{encoder.path}: expected attention as convolution, found {type(encoder.model).__name__}")
    if at is not None and len(at) != 2:
        raise UserError(f"expected --at Y,X, a pixel of an image, found {','.join(map(str, at))}")
    pixels = torch.cat(list(image_rows(encoder, inputs, max_images).batches)).to(encoder.compute.device)
    size = encoder.model.config.downsample
    with encoder.compute.autocast():
        return mean_maps(encoder.model, pixels, None if at is None else (at[0] // size, at[1] // size))


def draw_epochs(run: Path, layer: int, path: str | Path) -> None:
    """Draw the centers of one layer (figure 3), with a panel for each epoch that training.keep_every has kept."""
    saved = {int(folder.name.removeprefix("epoch-")): folder for folder in (run / KEPT).glob("epoch-*")}
    if not saved:
        raise UserError(f"{run}: found no saved epochs in {KEPT}/: train with training.keep_every=1, or omit --layer")
    epochs = [learned_centers(manyheads.load(saved[number]).model) for number in sorted(saved)]
    count = len(epochs[0].layers)
    if not -count <= layer < count:
        raise UserError(f"layer {layer} does not exist: valid are 0 to {count - 1}")
    names = tuple(f"epoch {number}" for number in sorted(saved))
    centers, widths = (torch.stack([getattr(epoch, name)[layer] for epoch in epochs]) for name in ("centers", "widths"))
    draw_centers(Centers(names, centers, widths), path, panels=names, title=f"{run.name}, layer {layer % count}")


def draw_centers(centers: Centers, path: str | Path, *, panels: Sequence[str] | None = None, title: str = "") -> None:
    """Draw figure 4 of the paper: a panel for each layer, with circles around 50% and 90% of each head's attention.

    The black square is the query pixel.

    panels  titles of the panels; default: layer 0, 1, ...
    """
    with extra("analysis", "a picture"):
        from matplotlib import colormaps
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import Circle
        from matplotlib.ticker import MaxNLocator

    layers, heads = centers.widths.shape
    # line colors that remain distinguishable for color-blind readers
    few = [*HUES, "#000000", "#999999", "#882255", "#332288"]
    hues = few if heads <= len(few) else [colormaps["Blues"](head / (heads - 1)) for head in range(heads)]
    rows = -(-layers // COLUMNS)
    columns = -(-layers // rows)
    figure = Figure(figsize=(2.6 * columns + 2.4, 2.7 * rows + 0.6), layout="compressed")
    places = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    # radii of the circles in standard deviations, for a Gaussian in two dimensions
    radii = [sqrt(-2 * log(1 - share)) for share in SHARES]
    reach = float(centers.centers.abs().max() + radii[0] * centers.widths.median()) + 1
    # The circles of a head with uniform attention would be too large, so they are clipped to just outside the picture.
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
    """Draw figures 5 and 6 of the paper: attention maps in a row for each layer and a column for each head.

    All maps have the same color scale, where black means no attention.
    """
    with extra("analysis", "a picture"):
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter

    layers, heads = means.maps.shape[:2]
    figure = Figure(figsize=(1.1 * heads + 1.4, 1.1 * layers + 0.9), layout="constrained")
    panels = figure.subplots(layers, heads, squeeze=False)
    row, column = means.query
    maps = means.maps.float().cpu().numpy()  # attention maps of all layers and heads, (L, H, Y, X)
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
    bar.set_label("fraction of the attention of the query (framed)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    about = f"{title}, " if title else ""
    number = f"mean over {means.images:,} images" if means.images > 1 else "one image"
    figure.suptitle(f"{about}{number}", fontsize=10, parse_math=False)
    save(figure, path)
