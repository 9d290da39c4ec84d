"""Figures of individual papers that the command `manyheads draw` draws for an image model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from manyheads import directory
from manyheads.analysis.drawing import short_name
from manyheads.analysis.figures import arrows, attention_centers
from manyheads.analysis.figures.attention_centers import Centers, learned_centers, mean_maps
from manyheads.analysis.figures.channel_weights import squeezes
from manyheads.core.tap import tapped
from manyheads.data.images.checking import open_image
from manyheads.data.images.clips import evenly_spaced, read_clip
from manyheads.data.images.files import PICTURES
from manyheads.data.images.labeled_images import read_images
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.source import ImageSource
from manyheads.errors import UserError
from manyheads.models.conv_attention import ConvAttention, QuadraticAttention
from manyheads.models.nonlocal_net import NonLocalBlock
from manyheads.tasks.images.predictor import ImageEncoder
from manyheads.tasks.images.task import EVALUATION_BATCH
from manyheads.training.run_directory import KEPT

MAX_IMAGES = 1000  # default for the maximum number of images over which a mean is taken
FRAMES = 8  # default number of frames in a video clip


def draw_channels(
    encoder: ImageEncoder, inputs: Sequence[str], out: Path, *, layer: int | None = None, images: int = MAX_IMAGES
) -> None:
    """Draw the mean channel weights of squeeze-and-excitation blocks for each image class (Hu 2017).

    layer  index of the block to draw; None: the last block of each network stage
    """
    batches, rows, row_of, total = _read_images(encoder, inputs, images)
    weights = encoder.channel_weights(batches, rows, row_of, title=_describe_inputs(inputs, total))
    (weights.last_of_stages() if layer is None else weights.of([layer])).draw(out)


def draw_arrows(
    encoder: ImageEncoder,
    inputs: Sequence[str],
    out: Path,
    *,
    at: tuple[int, ...] | None = None,
    layer: int = -1,
    frames: int = FRAMES,
) -> None:
    """Draw arrows from one position of an image or a video clip to the positions that it attends to.

    The arrows point to the 20 positions with the highest attention weights (Wang 2018, figure 3).
    """
    if len(inputs) != 1:
        raise UserError(f"expected one INPUT, an image, an animation or a folder of frames, found {len(inputs)}")
    clip = read_clip(inputs[0], frames)
    pixels = torch.from_numpy(np.stack([encoder.preprocessing.array(frame) for frame in clip.frames], 1))[None]
    # The input is a video clip (1, C, T, Y, X), or an image (1, C, Y, X).
    pixels = pixels if len(clip.frames) > 1 else pixels[:, :, 0]
    middle = tuple(size // 2 for size in pixels.shape[-2:])
    position = (middle if pixels.dim() == 4 else (0, *middle)) if at is None else at
    if len(position) != pixels.dim() - 2:
        kind = "an image: expected --at Y,X" if pixels.dim() == 4 else "a clip: expected --at T,Y,X"
        raise UserError(f"{inputs[0]} is {kind}, found {','.join(map(str, position))}")
    with encoder.compute.autocast():
        strongest = arrows.strongest_arrows(encoder.model, pixels.to(encoder.compute.device), position, layer=layer)
    arrows.draw(strongest, out, numbers=clip.indices, title=f"{short_name(encoder.path)}: {Path(inputs[0]).name}")


def draw_centers(encoder: ImageEncoder, inputs: Sequence[str], out: Path, *, layer: int | None = None) -> None:
    """Draw the attention centers that the heads have learned (Cordonnier 2020, figures 3 and 4).

    layer  index of the layer to draw, with a panel for each epoch that the run saved; None: all layers, after training
    """
    if inputs:
        raise UserError(f"centers are parameters of the model and need no images: leave out {' '.join(inputs)}")
    name, centers = short_name(encoder.path), learned_centers(encoder.model)
    if layer is None:
        return attention_centers.draw_centers(centers, out, title=name)
    count = len(centers.layers)
    if not -count <= layer < count:
        raise UserError(f"layer {layer} does not exist: valid are 0 to {count - 1}")
    epochs = _saved_epochs(encoder.path)
    models = [learned_centers(directory.load(path).model) for path in epochs.values()]
    by_epoch = Centers(
        tuple(epochs),
        torch.stack([state.centers[layer] for state in models]),
        torch.stack([state.widths[layer] for state in models]),
    )
    attention_centers.draw_centers(by_epoch, out, panels=by_epoch.layers, title=f"{name}, layer {layer % count}")


def draw_maps(
    encoder: ImageEncoder,
    inputs: Sequence[str],
    out: Path,
    *,
    at: tuple[int, ...] | None = None,
    images: int = MAX_IMAGES,
) -> None:
    """Draw the attention map of each head, averaged over images (Cordonnier 2020, figures 5 and 6).

    The map shows the attention from the query position `at`, or from the middle position if `at` is None.
    """
    if at is not None and len(at) != 2:
        raise UserError(f"expected --at Y,X, a pixel of an image, found {','.join(map(str, at))}")
    batches, *_ = _read_images(encoder, inputs, images)
    pixels = torch.cat(list(batches)).to(encoder.compute.device)
    size = encoder.model.config.downsample
    query = None if at is None else (at[0] // size, at[1] // size)
    with encoder.compute.autocast():
        means = mean_maps(encoder.model, pixels, query)
    attention_centers.draw_maps(means, out, title=short_name(encoder.path))


class Figure(NamedTuple):
    """Type of figure that the command `manyheads draw` can draw.

    shows  name of the model part that the figure shows, such as channel weights
    fits   function that returns True for a model with this part
    draw   function that draws the figure, called as `draw(encoder, inputs, out, options)`
    """

    shows: str
    fits: Callable[[nn.Module], bool]
    draw: Callable[..., None]


def _contains(kind: type[nn.Module]) -> Callable[[nn.Module], bool]:
    return lambda model: any(isinstance(module, kind) for module in model.modules())


FIGURES = {
    "arrows": Figure("a non-local block", _contains(NonLocalBlock), draw_arrows),
    "centers": Figure("attention with quadratic position encoding", _contains(QuadraticAttention), draw_centers),
    "channels": Figure("squeeze-and-excitation", lambda model: bool(squeezes(model)), draw_channels),
    "maps": Figure("attention as convolution", _contains(ConvAttention), draw_maps),
}


def draw(predictor: Any, figure: str, inputs: Sequence[str], out: Path, **options: Any) -> None:
    """Draw one of the figures in FIGURES as PNG or SVG, by the suffix of `out`.

    Raises UserError if the model does not have the part that the figure shows, or if the figure does not have an
    option. The message names the figures that the model supports.
    """
    selected = FIGURES[figure]
    model = predictor.model
    if not selected.fits(model):
        commands = [f"manyheads draw {name}" for name, other in FIGURES.items() if other.fits(model)]
        if tapped(model) or squeezes(model):
            commands.append("manyheads attend")
        hint = f"Use {' or '.join(commands)}." if commands else "The model has no attention to draw."
        raise UserError(
            f"{predictor.path}: the figure '{figure}' shows {selected.shows}, which this model does not have. {hint}"
        )
    for name in options:
        if name not in signature(selected.draw).parameters:
            others = [other for other, row in FIGURES.items() if name in signature(row.draw).parameters]
            raise UserError(f"--{name} applies only to {' and '.join(others)}: leave it out for {figure}")
    selected.draw(predictor, inputs, out, **options)


def _read_images(
    encoder: ImageEncoder, inputs: Sequence[str], max_images: int
) -> tuple[Iterator[Tensor], tuple[str, ...], list[int], int]:
    """Return image batches (B, C, Y, X), the names of the figure's rows, the row index of each image, and the image
    count.

    If the only input is a data set, each row of the figure shows one class. Otherwise each row shows one image file.
    """
    if not inputs:
        raise UserError("found no images: give a folder of class folders, a table of images, or image files")
    source = Path(inputs[0])
    if len(inputs) > 1 or (source.is_file() and source.suffix.lower() in PICTURES):
        names = [Path(name).name for name in inputs]
        arrays = (torch.from_numpy(encoder.preprocessing.array(open_image(name)))[None] for name in inputs)
        return arrays, tuple(names), list(range(len(names))), len(names)
    data = read_images(ImageSource().test_in(inputs[0]))
    data = data.subset(evenly_spaced(len(data), max_images))
    present = tuple(name for name in data.names if name in set(data.labels))
    loader = ImageLoader(data, present, encoder.preprocessing, batch_items=EVALUATION_BATCH)
    batches = (torch.from_numpy(batch.images) for batch in loader.epoch())
    return batches, present, loader.labels.tolist(), len(data)


def _describe_inputs(inputs: Sequence[str], count: int) -> str:
    return f"{Path(inputs[0]).name}, {count:,} images" if len(inputs) == 1 else f"{count:,} images"


def _saved_epochs(run: Path) -> dict[str, Path]:
    """Return the models that a training run saved, by epoch, in training order. Raises UserError if there are none."""
    saved = {int(path.name.removeprefix("epoch-")): path for path in (run / KEPT).glob("epoch-*")}
    if not saved:
        raise UserError(
            f"{run}: found no saved epochs in {KEPT}/: train with training.keep_every=1, or leave out --layer"
        )
    return {f"epoch {number}": saved[number] for number in sorted(saved)}
