"""Channel weights that some convolutional networks compute for images (Hu, Shen & Sun 2017, section 6.4).

In a squeeze-and-excitation network, each block has one weight for each channel. In an SKNet or ResNeSt, each block has
one weight for each branch and channel, and each branch counts as a block here.

    weights = channel_weights(model, [images], ["a cat"])       # one image, (1, C, Y, X)
    weights.draw("channels.png")

For images of several classes, each row of weights is the mean over one class, as in the paper's figure. That figure
shows that early blocks give all classes similar channel weights, and later blocks do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.analysis.drawing import HUES, new_figure, save, short_name
from manyheads.calls import checked_methods
from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError
from manyheads.files import PICTURES, replacing
from manyheads.models.selective_kernel import BranchAttention
from manyheads.models.squeeze_excitation import SqueezeExcitation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (*PICTURES, ".npz")
NAMED = 40  # maximum number of rows with labels in a heat map
WIDTH = 7.0  # width of the figure in inches


@checked_methods
@dataclass(frozen=True)
class ChannelWeights:
    """Mean weight of every channel of each block over each of R groups of images.

    layers   module names of the blocks, in the network's order, followed by the number of the branch, if any
    weights  weights from 0 to 1 for each block, (R, C) float32
    rows     names of the R groups: classes, or single images
    images   number of images in each group, (R,)
    model    name or path of the model
    title    description of the images
    picture  (Y, X) or (Y, X, 3) uint8: the preprocessed image, if there is only one
    """

    layers: tuple[str, ...]
    weights: tuple[NDArray[np.float32], ...]
    rows: tuple[str, ...]
    images: NDArray[np.int64]
    model: str = ""
    title: str = ""
    picture: NDArray[np.uint8] | None = None

    def __repr__(self) -> str:
        channels = ", ".join(str(part.shape[1]) for part in self.weights)
        return f"ChannelWeights of {self.title!r} ({len(self.rows)} rows; channels of the blocks: {channels})"

    def of(self, layers: Sequence[int]) -> ChannelWeights:
        """Select blocks by index, from 0, or negative from the end.

        Raises UserError if a block does not exist.
        """
        count = len(self.layers)
        for number in layers:
            if not -count <= number < count:
                raise UserError(f"block {number} does not exist: valid are 0 to {count - 1}")
        return replace(
            self, layers=tuple(self.layers[n] for n in layers), weights=tuple(self.weights[n] for n in layers)
        )

    def last_of_stages(self) -> ChannelWeights:
        """Select the last block of each network stage, as in the paper's figure, and the last of its branches."""
        last = {layer.rpartition(".blocks.")[0]: number for number, layer in enumerate(self.layers)}
        return self.of(list(last.values()))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of the NPZ file.

        "channels/0" (R, C) holds the weights of the first block, and "channels/0/name" its name. "rows" holds the names
        of the rows, and "images" the number of images averaged in each row.
        """
        arrays: dict[str, NDArray[np.generic]] = {
            "model": np.array(self.model), "title": np.array(self.title), "rows": np.array(self.rows),
            "images": self.images,
        }  # fmt: skip
        for number, (layer, weights) in enumerate(zip(self.layers, self.weights, strict=True)):
            arrays |= {f"channels/{number}": weights, f"channels/{number}/name": np.array(layer)}
        return arrays

    def save(self, path: str | Path) -> None:
        """Write an NPZ file with the arrays that the method `arrays` returns. The file contains no pickled objects."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays())

    def draw(self, path: str | Path) -> None:
        """Draw the channel weights as PNG or SVG, by the suffix, with a panel for each block.

        A single row is drawn as bars, in the order of the channels. Several rows are drawn as a heat map below their
        mean over all images, with the channels sorted by mean weight.
        """
        several = len(self.rows) > 1
        high = 0.6 + 0.15 * min(len(self.rows) + 1, NAMED) if several else 1.3
        figure = new_figure(WIDTH, high * len(self.layers) + 1.0)
        of = f" of {short_name(self.model)}" if self.model else ""
        figure.suptitle(f"channel weights{of}\n{self.title}", fontsize=10, parse_math=False)
        pictured = self.picture is not None and not several
        panels = figure.subplots(
            len(self.layers), 2 if pictured else 1, squeeze=False, width_ratios=(1, 5) if pictured else None
        )
        for layer, weights, panel in zip(self.layers, self.weights, panels[:, -1], strict=True):
            named = f"{_block_title(layer)}: {weights.shape[1]} channels"
            if several:
                _classes(panel, self.rows, weights, self.images, named)
            else:
                _bars(panel, weights[0], named)
        if pictured:
            for panel in panels[:, 0]:
                panel.axis("off")
            panels[0, 0].imshow(self.picture, cmap="gray", interpolation="nearest")
        below = "channels, sorted by mean weight" if several else "channel"
        panels[-1, -1].set_xlabel(below, fontsize=8)
        if several:
            shown = panels[0, -1].images[0]
            bar = figure.colorbar(shown, ax=panels, location="bottom", shrink=0.5, aspect=30, pad=0.02)
            bar.set_label("channel weight, mean over the images", fontsize=8)
            bar.ax.tick_params(labelsize=7)
        save(figure, path)


def channel_gates(model: nn.Module) -> dict[str, SqueezeExcitation | BranchAttention]:
    """Return the modules of a model that compute channel weights by module name, in the order of the network."""
    gates = (SqueezeExcitation, BranchAttention)
    return {name: module for name, module in model.named_modules() if isinstance(module, gates)}


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the channel weights (B, C) of every block, or of each of its branches, while the `with` block runs.

    The result is a dictionary from names to lists, in the order of the calls. A list has one entry for each call of the
    block. The name of a branch is the name of its block and its number, from 0, such as `gate.1`.
    """
    seen: dict[str, list[Tensor]] = {}
    with ExitStack() as undo:
        for name, gate in channel_gates(model).items():

            def note(module: SqueezeExcitation | BranchAttention, inputs: tuple[Tensor, ...], name: str = name) -> None:
                with torch.no_grad():
                    weights = module.weights(*inputs)
                parts = {name: weights} if weights.dim() == 2 else {
                    f"{name}.{number}": part for number, part in enumerate(weights.unbind(1))
                }  # fmt: skip
                for part, of_channels in parts.items():
                    seen.setdefault(part, []).append(of_channels)

            undo.callback(gate.register_forward_pre_hook(note).remove)
        yield seen


def channel_weights(
    model: nn.Module,
    batches: Iterable[Tensor],
    rows: Sequence[str],
    row_of: Sequence[int] | NDArray[np.int64] | None = None,
    *,
    name: str = "",
    title: str = "",
    picture: NDArray[np.uint8] | None = None,
) -> ChannelWeights:
    """Return the mean channel weights of each group of images, such as the images of each class.

    batches  batches of images (B, C, Y, X), normalized as in training
    rows     names of the groups, which are the rows of the result
    row_of   index of the group of each image, in the order of the batches. By default, each image is a group
    name     name of the model
    title    description of the images
    picture  single image to show next to the weights

    Raises UserError for a model without channel weights, and for a group without images.
    """
    if not channel_gates(model):
        raise UserError(
            f"{name or type(model).__name__} has no channel weights: expected a network with squeeze-and-excitation, an"
            " SKNet or a ResNeSt"
        )
    order = np.arange(len(rows)) if row_of is None else np.asarray(row_of)
    sums: dict[str, Tensor] = {}
    done = 0
    for images in batches:
        with eval_mode(model), recorded_weights(model) as seen:
            model(images)
        places = torch.from_numpy(order[done : done + len(images)]).to(images.device)  # (B,)
        for layer, (weights,) in seen.items():
            total = sums.setdefault(layer, weights.new_zeros(len(rows), weights.shape[1], dtype=torch.float64))
            total.index_add_(0, places, weights.double())
        done += len(images)
    counts = np.bincount(order, minlength=len(rows))
    assert done == len(order), f"{done} images, expected {len(order)}"
    if not counts.all():
        raise UserError(f"no image of {rows[int(counts.argmin())]}: add images of it, or leave the class out")
    means = tuple((total.cpu().numpy() / counts[:, None]).astype(np.float32) for total in sums.values())
    return ChannelWeights(tuple(sums), means, tuple(rows), counts, name, title, picture)


def _block_title(layer: str) -> str:
    """Convert a module name such as `stages.1.blocks.2.squeeze` to a title such as `stage 2, block 3`.

    As in the paper, the title counts stages and blocks from 1. The title of a branch has its number, also from 1.
    """
    parts = layer.split(".")
    branch = f", branch {int(parts[-1]) + 1}" if parts[-1].isdigit() else ""
    return f"stage {int(parts[1]) + 1}, block {int(parts[3]) + 1}{branch}" if parts[0] == "stages" else layer


def _bars(panel: Axes, weights: NDArray[np.float32], title: str) -> None:
    panel.bar(range(len(weights)), weights, width=0.8, color=HUES[0])
    mean = float(weights.mean())
    panel.axhline(mean, color="black", linewidth=0.8, linestyle=":")
    panel.set_title(f"{title}, mean {mean:.2f} (dotted)", fontsize=9)
    panel.set(xlim=(-0.5, len(weights) - 0.5), ylim=(0, 1))
    panel.set_ylabel("weight", fontsize=8)
    panel.tick_params(labelsize=7)


def _classes(
    panel: Axes, rows: Sequence[str], weights: NDArray[np.float32], images: NDArray[np.int64], title: str
) -> None:
    overall = images @ weights / images.sum()  # (C,)
    # rows of the heat map: the mean of all images, then one row per class, (1 + R, C)
    shown = np.concatenate([overall[None], weights])[:, np.argsort(-overall)]
    panel.imshow(shown, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    panel.axhline(0.5, color="white", linewidth=1.5)
    differ = float(weights.std(0).mean())
    panel.set_title(f"{title}; rows differ by {differ:.3f} (standard deviation, mean over channels)", fontsize=9)
    named = ["all", *rows] if len(rows) < NAMED else ["all"]
    panel.set_yticks(range(len(named)), named, fontsize=7, parse_math=False)
    panel.tick_params(axis="x", labelsize=7)
