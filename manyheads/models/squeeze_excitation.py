"""Squeeze-and-excitation: channels that weigh each other (Hu, Shen & Sun 2017).

x -> mean over the image -> linear, to 1/16 -> ReLU -> linear -> sigmoid -> a factor for every channel of x

It stands at the end of a residual branch (figure 3 of the paper), as in the presets "...-se" of models/resnet.py.
"""

from __future__ import annotations

from torch import Tensor, nn

MULTIPLE = 8  # the inner width is one of 8, and at least 8, as the common implementations have it; the paper has C / r


class SqueezeExcitation(nn.Module):
    """x (B, C, Y, X) -> (B, C, Y, X), each channel scaled by a number between 0 and 1; `reduction` is the paper's r."""

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        inner = max(MULTIPLE, int(channels / reduction + MULTIPLE / 2) // MULTIPLE * MULTIPLE)
        self.squeeze = nn.Linear(channels, inner)
        self.excite = nn.Linear(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)[:, :, None, None]

    def weights(self, x: Tensor) -> Tensor:
        """How much each channel of x counts: (B, C), from 0 to 1."""
        return self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid()
