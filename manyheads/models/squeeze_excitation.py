"""Squeeze-and-excitation block: scales each channel of an image by a learned factor (Hu, Shen & Sun 2017).

x -> mean over the image -> linear, to 1/16 -> ReLU -> linear -> sigmoid -> a factor for every channel of x

It is used at the end of a residual branch (figure 3 of the paper), as in the presets "...-se" of models/resnet.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]
# The number of hidden units of a squeeze-and-excitation block is a multiple of 8, as in common implementations.
# In the paper it is C / r, for C channels and a reduction r.
MULTIPLE = 8


class SqueezeExcitation(nn.Module):
    """Squeeze-and-excitation: scale each channel of x (B, C, Y, X) by a factor between 0 and 1.

    reduction   ratio of the number of channels to the number of hidden units, r in the paper
    inner       number of hidden units. By default, it follows from `reduction`
    activation  activation function of the hidden units
    """

    def __init__(self, channels: int, reduction: int = 16, inner: int = 0, activation: Activation = torch.relu) -> None:
        super().__init__()
        self.activation = activation
        inner = inner or inner_width(channels, reduction)
        self.squeeze = nn.Linear(channels, inner)
        self.excite = nn.Linear(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)[:, :, None, None]

    def weights(self, x: Tensor) -> Tensor:
        """Return the factor of each channel of the image x, (B, C), from 0 to 1."""
        return self.excite(self.activation(self.squeeze(x.mean((2, 3))))).sigmoid()


def inner_width(channels: int, reduction: int, min_width: int = MULTIPLE) -> int:
    """Return the number of hidden units of two layers that compute weights of channels: a multiple of MULTIPLE."""
    return max(min_width, int(channels / reduction + MULTIPLE / 2) // MULTIPLE * MULTIPLE)
