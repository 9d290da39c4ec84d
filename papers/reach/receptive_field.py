"""Receptive fields: the input positions on which the middle output of a network depends, measured by its gradient.

A stack of convolutions of width 3 sees 3 positions, then 5, then 7: each layer adds a neighbor on both sides.
Attention sees all positions from the first layer on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from manyheads.analysis.drawing import save
from manyheads.core.attention import Attention
from manyheads.errors import UserError, extra

SAMPLES = 8  # number of random inputs over which the influence of an input position is averaged


@dataclass(frozen=True)
class Growth:
    """Influence of each input position on the middle output, for stacks of 1 to N layers.

    `convolution` and `attention` are arrays (N, T), one for each type of layer.
    """

    kernel: int
    convolution: Tensor
    attention: Tensor

    @property
    def fields(self) -> list[tuple[int, int, int]]:
        """Return the size of the receptive field for each depth.

        A row holds the number of layers, and the number of positions that convolutions and attention see.
        """
        influences = zip(self.convolution, self.attention, strict=True)
        return [(n, int((c > 0).sum()), int((a > 0).sum())) for n, (c, a) in enumerate(influences, 1)]

    def __str__(self) -> str:
        rows = [f"{n:6} {convolution:12} {attention:10}" for n, convolution, attention in self.fields]
        return "\n".join([f"layers convolution{'':2} attention", *rows])


def influence(network: Callable[[Tensor], Tensor], length: int, width: int, seed: int = 1) -> Tensor:
    """Return the influence of every input position on the middle output of a network, (T,).

    The influence is the norm |d middle output / d input|, averaged over random inputs.

    network  function from x (1, T, D) to (1, T, D), in float64; the influence of positions outside the receptive field
             is exactly zero
    """
    random = torch.Generator().manual_seed(seed)
    total = torch.zeros(length, dtype=torch.float64)
    for _ in range(SAMPLES):
        x = torch.randn(1, length, width, generator=random, dtype=torch.float64).requires_grad_()
        output = network(x)[0, length // 2]  # (D,)
        direction = torch.randn(output.shape, generator=random, dtype=torch.float64)
        (gradient,) = torch.autograd.grad(output @ direction, x)
        total += gradient[0].norm(dim=-1)
    return total / SAMPLES


def growth(layers: int = 6, kernel: int = 3, length: int = 31, width: int = 16, seed: int = 1) -> Growth:
    """Measure the receptive fields of stacks of 1 to `layers` layers with random weights, and with tanh between the
    layers.

    One type of stack has convolutions of width `kernel`, the other has attention.
    """
    if layers < 1 or kernel < 1 or kernel % 2 == 0:
        raise UserError(f"layers={layers}, kernel={kernel}: expected at least one layer, and an odd kernel")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        convolutions = [Along(nn.Conv1d(width, width, kernel, padding="same")).double() for _ in range(layers)]
        attentions = [Attention(width, 2).double() for _ in range(layers)]
    influences = [
        torch.stack([influence(_stacked(stack[:n]), length, width, seed) for n in range(1, layers + 1)])
        for stack in (convolutions, attentions)
    ]
    return Growth(kernel, *influences)


def draw(growth: Growth, path: str | Path) -> None:
    """Draw the influence of each input position, one row for each number of layers. Gray means no influence."""
    with extra("analysis", "a picture"):
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    titles = (f"convolutions of width {growth.kernel}", "attention")
    both = torch.stack([growth.convolution, growth.attention])  # (networks, layers, positions)
    middle, layers = both.shape[-1] // 2, both.shape[-2]
    extent = (-middle - 0.5, both.shape[-1] - middle - 0.5, layers + 0.5, 0.5)
    # one scale for both panels; its lower end keeps the smallest influence from being white
    scale = LogNorm(float(both[both > 0].min()) / 5, float(both.max()))
    for panel, title, values in zip(panels, titles, both.masked_fill(both == 0, torch.nan), strict=True):
        panel.set_facecolor("#cccccc")
        image = panel.imshow(
            values.numpy(), aspect="auto", cmap="Blues", norm=scale, extent=extent, interpolation="nearest"
        )
        panel.set(title=title, xlabel="input position, relative to the output")
    figure.colorbar(image, ax=panels, label="influence (gray: none)")
    panels[0].set(ylabel="layers")
    save(figure, path)


class Along(nn.Module):
    """Convolution along the dimension T of an input x (B, T, D)."""

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.transpose(1, 2)).transpose(1, 2)


def _stacked(layers: list[Along] | list[Attention]) -> Callable[[Tensor], Tensor]:
    def network(x: Tensor) -> Tensor:
        for layer in layers:
            x = torch.tanh(layer(x))
        return x

    return network
