"""Layers other than attention: feed-forward networks, token and patch embeddings, and initialization."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from manyheads.core.dropout import dropout
from manyheads.core.masks import padding
from manyheads.core.tap import Tap
from manyheads.errors import UserError


def quick_gelu(x: Tensor) -> Tensor:
    """Return x * sigmoid(1.702 x), the approximation of GELU in CLIP."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,  # GELU, x * Phi(x), where Phi is the normal distribution function, computed with erf
    # tanh approximation of GELU, as in the original code of BERT and GPT-2
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}


class FeedForward(nn.Module):
    """Feed-forward network activation(x W1 + b1) W2 + b2, applied to each position (Vaswani 2017, section 3.3).

    x (..., D) -> (..., D). During training, `dropout` applies to the hidden activations.
    """

    def __init__(self, width: int, hidden: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UserError(f"unknown activation {activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout
        self.tap = Tap("feed_forward")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.expand(x))
        return self.tap.on("feed_forward", self.contract(dropout(hidden, self.dropout, self.training)))


class LabelHead(nn.Linear):
    """Linear layer from features (..., D) to the logits of labels (..., L), which can be recorded and edited."""

    def __init__(self, width: int, labels: int, bias: bool = True) -> None:
        super().__init__(width, labels, bias)
        self.tap = Tap("logits")

    def forward(self, input: Tensor) -> Tensor:
        return self.tap.on("logits", super().forward(input))


class RMSNorm(nn.LayerNorm):
    """Norm that does not subtract the mean: x / sqrt(mean(x^2) + eps) * weight, without a bias (Zhang 2019).

    x (..., D) -> (..., D). It is a layer norm by its type, so that blocks and stacks accept both.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(width, eps=eps, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class BatchNorm(nn.Module):
    """Batch normalization of texts: one mean and one variance per channel, over the real tokens of a batch.

    Source: Ioffe 2015. x (B, T, D) -> (B, T, D). In eval mode, running averages replace the mean and variance of the
    batch. The output for a token then depends on no other token.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the normalized tokens. In training, the output for padding is zero.

        lengths  (B,) number of real tokens of each row. By default, all tokens are real

        Raises UserError for a training batch of a single token, which has no variance.
        """
        if lengths is None or not self.training:
            tokens = x.flatten(0, 1)
            return self._normalized(tokens).view_as(x)
        real = ~padding(lengths, x.shape[1], x.device)[..., 0]  # (B, T)
        output = torch.zeros_like(x)
        output[real] = self._normalized(x[real])
        return output

    def _normalized(self, tokens: Tensor) -> Tensor:
        # In training on several ranks, the norm has another class, and its statistics include the tokens of all ranks.
        if self.norm.training and len(tokens) < 2 and isinstance(self.norm, nn.BatchNorm1d):
            raise UserError(
                "batch normalization expected at least two tokens in a batch, found one: use larger batches"
            )
        normalized: Tensor = self.norm(tokens)
        return normalized


class TokenEmbedding(nn.Embedding):
    """Token embedding, multiplied by sqrt(D) if `scaled` (Vaswani 2017, section 3.4).

    The embedding of the padding token `pad` is always zero.
    """

    def __init__(self, vocabulary: int, width: int, pad: int | None = None, *, scaled: bool = False) -> None:
        super().__init__(vocabulary, width, padding_idx=pad)
        self.scale = math.sqrt(width) if scaled else 1.0

    def reset_parameters(self) -> None:
        """Draw the embedding matrix from N(0, 1/D).

        The embeddings are multiplied by sqrt(D), so their initial variance is one. If the output projection uses the
        same matrix, the initial variance of the logits is close to one.
        """
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        self._fill_padding_idx_with_zero()

    def forward(self, tokens: Tensor) -> Tensor:
        try:
            embedded = super().forward(tokens)  # (B, T) -> (B, T, D)
        except IndexError:
            raise UserError(
                f"a text has the token id {int(tokens.max())}, but the model has {self.num_embeddings:,} embeddings:"
                " leave out tokens that were added to the tokenizer, or use the tokenizer of this model"
            ) from None
        return embedded if self.scale == 1.0 else embedded * self.scale


class PatchEmbedding(nn.Conv2d):
    """Linear projection of image patches of `patch` x `patch` pixels (Dosovitskiy 2020, equation 1).

    images (B, C, Y, X) -> (B, Y / patch * X / patch, D), row by row. Raises UserError if
    `patch` does not divide a side of the image.
    """

    def __init__(self, patch: int, width: int, channels: int = 3, *, bias: bool = True) -> None:
        super().__init__(channels, width, patch, stride=patch, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weights from N(0, 1 / fan-in), so that images of unit variance give vectors of unit variance.

        The original code of ViT uses this initialization (LeCun), too.
        """
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1] != self.in_channels:
            raise UserError(f"expected images of shape (B, {self.in_channels}, Y, X), found {tuple(images.shape)}")
        for side in images.shape[2:]:
            count_patches(side, self.stride[0])
        # one dimension for all patches: (B, D, Y / P, X / P) -> (B, N, D)
        return super().forward(images).flatten(2).transpose(1, 2)


def concatenate_windows(x: Tensor, kernel: int, dilation: int = 1) -> Tensor:
    """Return the windows of a convolution over positions: `kernel` concatenated input vectors per output position.

    x (B, T + (kernel - 1) * dilation, D) -> (B, T, kernel * D). A linear layer that is applied to the windows computes
    the convolution. On a CPU it is as fast as PyTorch's convolution, which would require another order of dimensions.
    """
    length = x.shape[1] - (kernel - 1) * dilation
    return torch.cat([x[:, i * dilation : i * dilation + length] for i in range(kernel)], -1)


def count_patches(side: int, patch: int) -> int:
    """Return the number of patches along a side of `side` pixels.

    Raises UserError with the nearest valid sizes if `patch` does not divide `side`.
    """
    count, remainder = divmod(side, patch)
    if remainder:
        valid_sizes = " and ".join(str(n * patch) for n in (count, count + 1) if n)
        raise UserError(
            f"{side} pixels are not divisible by the patch size {patch}: the nearest valid sizes are {valid_sizes}"
        )
    return count


class skip_init(TorchFunctionMode):
    """Context manager that skips random initialization while a model is built. The weights are zeros instead.

    Use it for models whose weights are loaded from a file: drawing random weights takes longer than reading the file.
    On the meta device, PyTorch would import its compiler to draw them.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in RANDOM_INITIALIZERS:
            with torch.no_grad():
                return (args[0] if args else kwargs["tensor"]).zero_()
        return function(*args, **(kwargs or {}))


RANDOM_INITIALIZERS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


def xavier_uniform(module: nn.Module) -> None:
    """Initialize every linear layer inside `module` with Glorot's uniform weights and zero biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
