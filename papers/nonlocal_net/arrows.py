"""Arrows from one position of an image or clip to the positions that it attends to most (Wang 2018, figures 1 and 3).

`strongest_arrows(model, clip, (1, 60, 80), out=Path("arrows.png"))` finds and draws the arrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from manyheads.analysis.drawing import HUES, save
from manyheads.core.recording import record, tapped
from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError, extra

COUNT = 20  # number of arrows that the paper's figures show


@dataclass(frozen=True)
class Arrows:
    """Strongest attention weights of one query position, in descending order.

    layer    name of the attention layer
    start    (frame, y, x) of the query in pixels, at the center of its cell in the layer's grid
    ends     (frame, y, x) of each of the N attended positions in pixels, (N, 3)
    weights  attention weight of each attended position, (N,)
    shares   true if the attention weights of a query sum to one over all keys, as after a softmax
    frames   input of the model as an array of frames, (T, C, Y, X); an image is one frame
    """

    layer: str
    start: tuple[float, float, float]
    ends: Tensor
    weights: Tensor
    shares: bool
    frames: Tensor


def strongest_arrows(
    model: nn.Module,
    images: Tensor,
    at: tuple[int, ...],
    *,
    layer: str | int = -1,
    head: int = 0,
    count: int = COUNT,
    out: str | Path | None = None,
) -> Arrows:
    """Return the strongest weights of one query in a layer that attends over a grid, such as a non-local block.

    images  one image (1, C, Y, X), or one clip (1, C, T, Y, X), preprocessed for the model
    at      position of the query in pixels: (y, x) in an image, (t, y, x) in a clip
    layer   name or index of the attention layer; default: the last attention layer
    out     path of a PNG or SVG file for a picture with the frames side by side; default: no picture

    Raises UserError for a position outside the image, and for a layer that does not attend over a grid.
    """
    size = (1, *images.shape[2:])[-3:]
    pixel = (0, *at)[-3:]
    if len(images) != 1 or images.dim() - len(at) != 2:
        raise UserError(
            f"expected one image and (y, x), or one clip and (t, y, x); found {tuple(images.shape)} and {at}"
        )
    if not all(0 <= place < length for place, length in zip(pixel, size, strict=True)):
        raise UserError(f"{at} is outside the image: expected a position within {tuple(images.shape[2:])}")
    name, grid, pool = _grid(model, images, layer)
    cell = [place * cells // length for place, length, cells in zip(pixel, size, grid, strict=True)]
    row = (cell[0] * grid[1] + cell[1]) * grid[2] + cell[2]
    with eval_mode(model), record(model, layers=name, heads=[head], queries=[row]) as maps:
        model(images)
    weights = maps[name][0].flatten().cpu()
    # The layer may pool its keys: number of query positions per key in each dimension of the grid.
    step = (1, min(pool, grid[1]), min(pool, grid[2]))
    keys = [cells // pooled for cells, pooled in zip(grid, step, strict=True)]
    if len(weights) != keys[0] * keys[1] * keys[2]:
        raise UserError(f"{name} has {len(weights)} keys, expected one for each cell of the grid {tuple(keys)}")
    strongest = weights.abs().topk(min(count, len(weights))).indices
    places = torch.stack(torch.unravel_index(strongest, keys), 1)  # (N, 3)
    pixels = torch.tensor([length / cells for length, cells in zip(size, grid, strict=True)])  # pixels per cell
    ends = (places + 0.5) * torch.tensor(step) * pixels
    start = (torch.tensor(cell) + 0.5) * pixels
    # Only the coordinates y and x are scaled to pixels, frame indices are not.
    ends[:, 0], start[0] = places[:, 0], cell[0]
    frames = images[0].detach().reshape(images.shape[1], *size).transpose(0, 1)
    shares = bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) < 0.02
    arrows = Arrows(name, tuple(start.tolist()), ends, weights[strongest], shares, frames)
    if out is not None:
        draw(arrows, out)
    return arrows


def draw(arrows: Arrows, path: str | Path, *, numbers: Sequence[int] | None = None, title: str = "") -> None:
    """Draw the frames side by side, with axes in pixels and one arrow per attention weight.

    A larger weight gives a wider arrow, and the title gives the range of the weights. The colors of the frames are
    stretched to the full range.

    numbers  labels of the frames; default: 0, 1, ...
    """
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure
        from matplotlib.patheffects import withStroke

    count, _, height, width = arrows.frames.shape
    frames = arrows.frames[:, :3].float().cpu()
    frames = (frames - frames.min()) / (frames.max() - frames.min()).clamp(min=1e-6)
    strip = torch.cat(list(frames.permute(0, 2, 3, 1)), 1)  # all frames side by side, (Y, T * X, C)
    inches = min(3.5, 14 / count)
    figure = Figure(figsize=(max(inches * count, 3.5) + 0.4, inches * height / width + 0.8), layout="compressed")
    panel = figure.subplots()
    extent = (0, count * width, height, 0)
    shown = (strip if strip.shape[2] == 3 else strip[..., 0]).numpy()
    panel.imshow(shown, cmap="gray", extent=extent, interpolation="nearest")
    t, y, x = arrows.start
    sizes = arrows.weights.abs()
    weakest, range_ = sizes.min(), (sizes.max() - sizes.min()).clamp(min=1e-12)
    strengths = ((sizes - weakest) / range_).tolist()  # pixel values scaled to the range 0 to 1
    for (frame, down, right), strength in zip(arrows.ends.tolist(), strengths, strict=True):
        thick = 0.5 + 3 * strength
        look = {
            "arrowstyle": "->", "color": HUES[1], "linewidth": thick, "shrinkA": 0, "shrinkB": 0,
            # white outline that makes the arrow visible on any image
            "path_effects": [withStroke(linewidth=thick + 1, foreground="white", alpha=0.7)],
        }  # fmt: skip
        panel.annotate("", (frame * width + right, down), (t * width + x, y), arrowprops=look)
    panel.plot(t * width + x, y, "o", color=HUES[0], markeredgecolor="white", zorder=5)
    for frame in range(1, count):
        panel.axvline(frame * width, color="white", linewidth=1.5)
    low, high = (
        f"{float(weight):.2%}" if arrows.shares else f"{float(weight):.2g}"
        for weight in (arrows.weights[-1], arrows.weights[0])
    )
    about = f"{title}\n" if title else ""
    panel.set_title(
        f"{about}{arrows.layer}: the {len(sizes)} strongest weights of the blue position, {low} to {high} of its"
        " attention",
        fontsize=9, parse_math=False, wrap=True,
    )  # fmt: skip
    named = range(count) if numbers is None else numbers
    if count > 1:
        panel.set_xticks([(frame + 0.5) * width for frame in range(count)], [f"frame {n}" for n in named], fontsize=8)
        panel.tick_params(axis="x", length=0)
    else:
        panel.set_xlabel("pixel", fontsize=8)
    panel.set_ylabel("pixel", fontsize=8)
    panel.tick_params(labelsize=7)
    save(figure, path)


def _grid(model: nn.Module, images: Tensor, layer: str | int) -> tuple[str, tuple[int, int, int], int]:
    """Return the name of an attention layer, the size of its grid of positions, and the pooling factors of its keys.

    The size of the grid is its number of frames, rows and columns.
    """
    layers = tapped(model)
    name = list(layers)[layer] if isinstance(layer, int) and -len(layers) <= layer < len(layers) else layer
    if name not in layers:
        raise UserError(f"no attention layer {layer!r}; valid are {', '.join(layers) or 'none'}")
    shapes: list[torch.Size] = []
    handle = layers[name].register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0].shape))
    try:
        with eval_mode(model):
            model(images)
    finally:
        handle.remove()
    if not shapes or len(shapes[0]) not in (4, 5):
        raise UserError(f"{name} does not attend over a grid: expected a layer such as a non-local block")
    space = (1, *shapes[0][2:])[-3:]
    return str(name), (space[0], space[1], space[2]), getattr(layers[name], "pool", 1)
