"""The bricks around attention: feed-forward networks, token and patch embeddings, initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.overrides import TorchFunctionMode

from manyheads.core.dropout import dropout
from manyheads.core.tap import Tap
from manyheads.errors import UserError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,  # x * Phi(x) through erf
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # the approximation of BERT's and GPT-2's original code
}


class FeedForward(nn.Module):
    """activation(x W1 + b1) W2 + b2, at every position by itself (Vaswani 2017, section 3.3).

    x (..., D) -> (..., D); `dropout` acts on the hidden activations while training.
    """

    def __init__(self, width: int, hidden: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"unknown activation {activation!r}: valid are {', '.join(ACTIVATIONS)}")
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout
        self.tap = Tap("feed_forward")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.expand(x))
        return self.tap.on_residual(self.contract(dropout(hidden, self.dropout, self.training)))


class TokenEmbedding(nn.Embedding):
    """Token vectors, multiplied by sqrt(D) where `scaled` (Vaswani 2017, section 3.4). Row `pad` is and stays zero."""

    def __init__(self, vocabulary: int, width: int, pad: int | None = None, *, scaled: bool = False) -> None:
        super().__init__(vocabulary, width, padding_idx=pad)
        self.scale = math.sqrt(width) if scaled else 1.0

    def reset_parameters(self) -> None:
        """N(0, 1/D): with the scale, inputs have unit variance; tied to the output, logits start near unit variance."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        self._fill_padding_idx_with_zero()

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = super().forward(tokens)  # (B, T) -> (B, T, D)
        return embedded if self.scale == 1.0 else embedded * self.scale


class PatchEmbedding(nn.Conv2d):
    """Patches of `patch` x `patch` pixels, each as one vector (Dosovitskiy 2020, equation 1).

    images (B, C, Y, X) -> (B, Y / patch * X / patch, D), row by row. Raises UserError where the patches do not fit.
    """

    def __init__(self, patch: int, width: int, channels: int = 3) -> None:
        super().__init__(channels, width, patch, stride=patch)

    def reset_parameters(self) -> None:
        """N(0, 1 / fan-in): images of unit variance become vectors of unit variance (the original code: LeCun's)."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1] != self.in_channels:
            raise UserError(f"the images are {tuple(images.shape)}: expected (B, {self.in_channels}, Y, X)")
        for side in images.shape[2:]:
            whole_patches(side, self.stride[0])
        return super().forward(images).flatten(2).transpose(1, 2)  # (B, D, Y / P, X / P) -> (B, N, D)


def whole_patches(side: int, patch: int) -> int:
    """How many patches go into a side of so many pixels. Raises UserError with the nearest sizes that fit."""
    count, rest = divmod(side, patch)
    if rest:
        fitting = " and ".join(str(n * patch) for n in (count, count + 1) if n)
        raise UserError(f"{side} pixels are not divisible by patches of {patch}: nearest that fit: {fitting}")
    return count


class LSTM(nn.LSTM):
    """As PyTorch's, in the precision of its weights: under bf16 autocast a CPU has none for rows of one length."""

    def forward(self, x: Any, state: tuple[Tensor, Tensor] | None = None) -> Any:
        """x (B, T, D), or packed -> what nn.LSTM gives."""
        weight = self.weight_ih_l0
        if weight.device.type != "cpu":
            return super().forward(x, state)
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.to(weight.dtype), state)


def packed(x: Tensor, lengths: Tensor | None) -> Tensor | PackedSequence:
    """x (B, T, D) for a recurrent layer that stops at the end of each text, lengths (B,); None: all of it is real."""
    return x if lengths is None else pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)


class skip_init(TorchFunctionMode):
    """While a model is built whose weights come from a file: its first random ones are not drawn, but zeros.

    Drawing takes longer than reading does, and PyTorch imports its compiler to draw on the meta device.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in DRAWING:
            with torch.no_grad():
                return (args[0] if args else kwargs["tensor"]).zero_()
        return function(*args, **(kwargs or {}))


DRAWING = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_)


def xavier_uniform(module: nn.Module) -> None:
    """Glorot's uniform weights and zero biases for every linear layer below `module`."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
