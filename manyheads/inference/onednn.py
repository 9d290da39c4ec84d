"""Transformer blocks for whole sequences with matrix products of oneDNN, which are called through PyTorch.

Processors with AMX multiply large bf16 matrices many times faster with oneDNN than with the vector instructions of the
fused kernels. The rows of all sequences are concatenated without padding. Matrix products are in float32 or bf16; the
residual stream and the norms are in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.layers import ACTIVATIONS
from manyheads.core.masks import Mask

# oneDNN's name and algorithm of each activation function
ACTIVATION_NAMES: dict[Callable[[Tensor], Tensor], tuple[str, str]] = {
    ACTIVATIONS["relu"]: ("relu", ""),
    ACTIVATIONS["silu"]: ("swish", ""),
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh"),
}
ONEDNN_ROWS = 2048  # maximum number of rows per call; a single sequence may be longer
# Rows are padded to a multiple of this number, because oneDNN compiles a product for each number of rows.
ROW_STEP = 64

CAUSAL = Mask(causal=True)
Product = tuple[Tensor, Tensor | None]  # weight (N, K) and bias (N,)


def is_available(dtype: torch.dtype) -> bool:
    """Return True if PyTorch has oneDNN's matrix products with packed weights of this dtype on this processor."""
    has_ops = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has_ops and (dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


class OneDnnBlock:
    """Self-attention and a feed-forward network, with weights in the layout of oneDNN.

    norms       norms of self-attention and of the feed-forward network
    products    weights and biases of four matrix products: queries, keys and values in one; attention output; expanding
                and contracting layer of the feed-forward network
    activation  oneDNN's name and algorithm of the activation function
    """

    def __init__(
        self, norms: Sequence[nn.LayerNorm], products: Sequence[Product], heads: int, norm_first: bool,
        activation: tuple[str, str], dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self._attention_norm, self._feed_forward_norm = norms
        self._products = [
            (torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype), ONEDNN_ROWS),
             None if bias is None else bias.detach().to(dtype))
            for weight, bias in products
        ]  # fmt: skip
        self._heads, self._norm_first, self._activation, self._dtype = heads, norm_first, activation, dtype

    def __call__(self, x: Tensor, lengths: Sequence[int], causal: bool) -> Tensor:
        """Apply the block to sequences of the given lengths, whose rows are concatenated: x (rows, D). May change x."""
        left = self._attention_norm(x) if self._norm_first else x
        mixed = self._attend(self._linear(0, left), lengths, causal)
        x = self._add(x, self._linear(1, mixed), self._attention_norm)
        left = self._feed_forward_norm(x) if self._norm_first else x
        return self._add(x, self._linear(3, self._linear(2, left, *self._activation)), self._feed_forward_norm)

    def _linear(self, index: int, x: Tensor, activation: str = "none", algorithm: str = "") -> Tensor:
        weight, bias = self._products[index]
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x.to(self._dtype), weight, bias, activation, [], algorithm)
        return product

    def _add(self, x: Tensor, added: Tensor, norm: nn.LayerNorm) -> Tensor:
        x = x.add_(added)
        return x if self._norm_first else norm(x)

    def _attend(self, qkv: Tensor, lengths: Sequence[int], causal: bool) -> Tensor:
        """Return the output of attention within each sequence, (rows, H * Dh).

        Consecutive sequences of equal length are computed as one batch.
        """
        out = qkv.new_zeros(len(qkv), qkv.shape[1] // 3)
        begin = 0
        for length, group in groupby(lengths):
            count = len(list(group))
            end = begin + count * length
            query, key, value = qkv[begin:end].view(count, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
            mixed = attend(query, key, value, mask=CAUSAL if causal else None)  # (B, H, T, Dh)
            out[begin:end].view(count, length, self._heads, -1).copy_(mixed.transpose(1, 2))
            begin = end
        return out
