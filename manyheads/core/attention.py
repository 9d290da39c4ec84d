"""Attention function `attend` and the multi-head attention module.

`attend` computes scores, adds a bias, applies the mask, normalizes the scores to attention weights, records or edits
them, applies dropout, and computes the weighted sum of the values, in this order. All attention layers of the package
call it: self-attention, cross-attention, causal, windowed, packed, additive, local and convolutional attention, and
non-local blocks. They differ in projections, scores, bias and mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.dropout import dropout as drop
from manyheads.core.masks import Mask
from manyheads.core.tap import ATTENTION, Calculation, Tap
from manyheads.core.trained_attention import TrainedAttention
from manyheads.errors import UserError

Normalize = Literal["softmax", "count", "none"]

# Maximum size (Tq x Tk) of an attention matrix for which, on a CPU, explicit matrix products are faster than PyTorch's
# fused kernel. Measured: 10 to 25% faster in a translation model of 4 + 4 layers with sentences of 13 to 18 tokens.
SMALL_MAP = 32 * 32
# The same maximum where the fused kernel calls oneDNN for each of its small products: in float32 below the precision
# "highest", and in the backward pass of bf16. Measured with 128 tokens and 4 heads of 18 features on an Intel processor
# with AVX-512: 3.7 ms (fused) and 1.2 ms (explicit) in inference, 15.5 ms and 3.2 ms in training. With 256 tokens, the
# fused kernel is faster in inference (13 ms and 23 ms), and slower in training (57 ms and 36 ms).
ONEDNN_MAP = 128 * 128
ONEDNN_TRAINED_MAP = 256 * 256


@dataclass(slots=True, eq=False)
class _AttentionMap:
    """Attention weights of one call of `attend`, computed only for the requested heads and query rows.

    The fields are the arguments of this call.
    """

    query: Tensor
    key: Tensor | None
    value: Tensor
    mask: Mask | None
    bias: Tensor | None
    scores: Tensor | None
    scale: float
    normalize: Normalize

    @property
    def queries(self) -> int:
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        return self.value.shape[-2]

    @property
    def is_plain_causal(self) -> bool:
        """Return True if the fused kernel supports this mask through its `is_causal` argument."""
        return self.mask is not None and self.bias is None and self.mask.is_plain_causal(self.queries, self.keys)

    def allowed(self) -> Tensor | None:
        """Return the mask as a boolean table, True where a query may attend to a key. None if no key is masked."""
        return None if self.mask is None else self.mask.materialize(self.queries, self.keys, self.query.device)

    def biased_scores(self, heads: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> Tensor:
        """Return the scaled scores with their bias, before the mask, (B, h, ..., tq, Tk)."""
        if self.scores is None:
            assert self.key is not None
            scores = _scaled_products(self._select(self.query, heads, rows), self._select(self.key, heads), self.scale)
        else:
            scores = self._select(self.scores, heads, rows)
        return scores if self.bias is None else scores + self._select(self.bias, heads, rows)

    def weights(self, heads: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> Tensor:
        """Return the attention weights of the given heads and query rows (default: all), (B, h, ..., tq, Tk)."""
        scores = self.biased_scores(heads, rows)
        allowed = self.allowed()
        allowed = None if allowed is None else self._select(allowed, heads, rows)
        return _normalize(
            scores, allowed, self.normalize, has_hidden_scores=self.bias is not None or self.scores is not None
        )

    def calculation(self, heads: Sequence[int] | None) -> Calculation:
        """Return the inputs from which the attention weights of the given heads are computed.

        Raises UserError if the weights are not a softmax over products of queries and keys.
        """
        if self.key is None or self.normalize != "softmax":
            raise UserError(
                "this attention has no query-key products to record: its weights are not a softmax over products of "
                "queries and keys"
            )
        allowed, added = self.allowed(), self.bias
        if allowed is not None:
            hidden = torch.zeros(allowed.shape, device=self.query.device).masked_fill(~allowed, -math.inf)
            added = hidden if self.bias is None else self.bias + hidden

        def part(tensor: Tensor) -> Tensor:
            return self._select(tensor, heads).detach().clone()

        query, key, value = part(self.query), part(self.key), part(self.value)
        return Calculation(query, key, value, self.scale, None if added is None else part(added))

    def fused(self, dropout: float) -> Tensor:
        """Return the weighted mean of the values for each query, (B, H, ..., Tq, Dv), by PyTorch's fused kernel."""
        assert self.key is not None
        triangle = self.is_plain_causal
        table = None if triangle else self.allowed()
        if self.bias is not None:
            table = (self.bias if table is None else self.bias.masked_fill(~table, -math.inf)).to(self.query.dtype)
        return F.scaled_dot_product_attention(
            self.query, self.key, self.value, attn_mask=table, dropout_p=dropout, is_causal=triangle, scale=self.scale
        )

    def explicit_is_faster(self, dropout: float) -> bool:
        """Return True if explicit matrix products are faster than PyTorch's fused kernel on this device.

        This holds on a CPU for small attention matrices. It also holds for training with dropout, because the fused
        kernel then stores the whole attention matrix and uses PyTorch's slow random generator. An exported graph has
        explicit products, which every runtime knows; sizes are symbols then, so the rule below does not apply.
        """
        if torch.compiler.is_exporting():
            return True
        if self.query.device.type != "cpu":
            return False
        is_trained = torch.is_grad_enabled() and self.value.requires_grad
        if is_trained and dropout > 0.0:
            return True
        has_onednn = is_trained and self.value.dtype == torch.bfloat16
        if torch.compiler.is_compiling():  # The compiler cannot read the precision.
            has_onednn = is_trained and not self.is_plain_causal
        elif self.value.dtype == torch.float32:
            has_onednn = torch.get_float32_matmul_precision() != "highest"
        limit = ONEDNN_TRAINED_MAP if is_trained else ONEDNN_MAP
        return self.queries * self.keys <= (limit if has_onednn else SMALL_MAP)

    def has_trained_products(self) -> bool:
        """Return True if `TrainedAttention` supports this attention: training on a CPU, without bias or compiler."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return False
        if self.scores is not None or self.bias is not None or self.normalize != "softmax":
            return False
        inputs = [x for x in (self.query, self.key, self.value) if x is not None]
        kinds = {(x.device.type, x.dtype, x.dim(), x.shape[:2]) for x in inputs}
        supported = {("cpu", self.query.dtype, 4, self.query.shape[:2])}
        return kinds == supported and any(x.requires_grad for x in inputs)

    def trained(self, dropout: float) -> Tensor:
        """Return the weighted mean of the values for each query, by `TrainedAttention`, for training on a CPU."""
        query, key, allowed = self.query, self.key, self.allowed()
        assert key is not None

        def weights(items: slice) -> Tensor:
            """Return the attention weights of some items of the batch, (b, H, Tq, Tk)."""
            has_items = allowed is not None and allowed.shape[:-3] == query.shape[:1]
            hidden = allowed[items] if allowed is not None and has_items else allowed
            return _normalize(_scaled_products(query[items], key[items], self.scale), hidden, "softmax", False)

        mixed = TrainedAttention.apply(query, key, self.value, weights, self.scale, dropout)
        assert isinstance(mixed, Tensor)
        return mixed

    def _select(self, tensor: Tensor, heads: Sequence[int] | None, rows: Sequence[int] | None = None) -> Tensor:
        """Select heads and query rows of a tensor that broadcasts to the shape (B, H, ..., T, X).

        Dimensions of size 1 are kept, because they apply to all heads or rows.
        """
        # dimension of the heads, counted from the end; a tensor may lack this dimension, such as a bias that is the
        # same for all heads
        axis = tensor.dim() - self.query.dim() + 1
        if heads is not None and axis >= 0 and tensor.shape[axis] > 1:
            tensor = tensor[(slice(None),) * axis + (list(heads),)]
        if rows is not None and tensor.dim() > 1 and tensor.shape[-2] > 1:
            tensor = tensor[..., list(rows), :]
        return tensor


def attend(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scores: Tensor | None = None,
    scale: float | None = None,
    normalize: Normalize = "softmax",
    dropout: float = 0.0,
    tap: Tap | None = None,
    explicit: bool | None = None,
) -> Tensor:
    """Return the attention-weighted mean of the values for each query (Vaswani 2017, section 3.2.1).

    query (B, H, ..., Tq, Dh), key (B, H, ..., Tk, Dh), value (B, H, ..., Tk, Dv) -> (B, H, ..., Tq, Dv)
    mask       keys that each query may attend to. The result for a query without any allowed key is zero
    bias       tensor that is added to the scaled scores; broadcasts to (B, H, ..., Tq, Tk)
    scores     scores (B, H, ..., Tq, Tk) in place of scale * query @ key^T; `key` is then None (additive attention)
    scale      factor of the scores. By default, 1 / sqrt(Dh)
    normalize  "softmax" for the softmax of the scores; "count" for scores divided by the number of allowed keys (Wang
               2018, section 3.2); "none" for the scores themselves (Shen 2020)
    dropout    probability of dropping an attention weight
    tap        hook that records or edits queries, keys, values, scores, weights and outputs
    explicit   if True, compute the attention matrix. If False, use the fused kernel if possible. By default, use the
               faster method
    """
    assert (key is None) == (scores is not None), "expected either key or scores, not both"
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    if tap is not None and not tap.is_active:
        tap = None
    if tap is not None:
        query, value = tap.on("queries", query), tap.on("values", value)
        key = None if key is None else tap.on("keys", key)
    # The explicit and the fused computation read mask and bias from the same object, so that they always agree.
    attention_map = _AttentionMap(query, key, value, mask, bias, scores, scale, normalize)
    if tap is not None and tap.calculations:
        tap.record_calculation(attention_map.calculation)
    if explicit is None:
        explicit = attention_map.explicit_is_faster(dropout)
    if explicit and tap is None and attention_map.has_trained_products():
        return attention_map.trained(dropout)
    if tap is not None and tap.changes("scores"):
        scores = tap.on("scores", attention_map.biased_scores())
        attention_map = replace(attention_map, key=None, bias=None, scores=scores)
    elif tap is not None:
        tap.record("scores", attention_map.biased_scores, attention_map.queries)
    if explicit or scores is not None or normalize != "softmax" or (tap is not None and tap.needs_weights):
        weights = attention_map.weights()
        if tap is not None:
            weights = tap.on("attention", weights)
        mixed = drop(weights.to(value.dtype), dropout) @ value  # weighted means of the values, (B, H, ..., Tq, Dv)
    else:
        if tap is not None:
            tap.record("attention", attention_map.weights, attention_map.queries)
        mixed = attention_map.fused(dropout)
    return mixed if tap is None else tap.on("head_outputs", mixed)


def _scaled_products(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Return the scaled dot products of queries and keys, computed in float32 or a wider type.

    Fused kernels accumulate in float32 as well, whatever the precision of the model.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    # The meta device does not support autocast, so disable autocast for the CPU there.
    device = "cpu" if query.is_meta else query.device.type
    with torch.autocast(device, enabled=False):
        return (query.to(dtype) * scale) @ key.to(dtype).transpose(-2, -1)


def _normalize(scores: Tensor, allowed: Tensor | None, normalize: Normalize, has_hidden_scores: bool) -> Tensor:
    """Convert attention scores to attention weights. A query without any allowed key gets zeros, with zero gradients.

    has_hidden_scores  True if a bias may have set some scores to minus infinity
    """
    if normalize == "none":
        return scores if allowed is None else scores.masked_fill(~allowed, 0.0)
    if normalize == "count":
        if allowed is None:
            return scores / scores.shape[-1]
        count = allowed.sum(-1, keepdim=True).clamp(min=1)
        return scores.masked_fill(~allowed, 0.0) / count
    if allowed is None and not has_hidden_scores:
        return scores.softmax(-1)
    if has_hidden_scores:
        scores = scores if allowed is None else scores.masked_fill(~allowed, -math.inf)
        empty = scores.amax(-1, keepdim=True) == -math.inf
        return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    assert allowed is not None
    # Instead of three calls of masked_fill, a small table is added to the scores and another one is multiplied with the
    # weights, which is faster. Hidden scores become the lowest finite number. Unlike minus infinity, it causes no NaN
    # in a row without allowed keys; the result of other rows is the same.
    lowest = torch.zeros_like(allowed, dtype=scores.dtype).masked_fill_(~allowed, torch.finfo(scores.dtype).min)
    return (scores + lowest).softmax(-1) * allowed.any(-1, keepdim=True).to(scores.dtype)


class Attention(nn.Module):
    """Multi-head attention: projections around `attend` (Vaswani 2017, section 3.2.2).

    width         width D of the input and the output
    heads         number of heads H
    head_width    width Dh of a head. By default, width / heads as in the paper
    key_width     width of the queries and keys of a head. By default, the width of its values (Table 3, row B)
    memory_width  width of the sequence that supplies keys and values. By default, `width`
    bias          if True, the four projections have a bias
    qkv_bias      if True, the query, key and value projections have a bias. By default, equal to `bias`
    dropout       probability of dropping an attention weight during training
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int | None = None,
        *,
        key_width: int | None = None,
        memory_width: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if head_width is None and width % heads:
            raise UserError(f"width {width} is not divisible by {heads} heads: change one of them or set head_width")
        self.heads = heads
        self.head_width = width // heads if head_width is None else head_width
        self.dropout = dropout
        self.explicit: bool | None = None  # passed to attend(): explicit matrix products or the fused kernel
        self.key_width = key_width or self.head_width
        value_width, memory_width = heads * self.head_width, memory_width or width
        key_query_width = heads * self.key_width
        input_bias = bias if qkv_bias is None else qkv_bias
        self.query = nn.Linear(width, key_query_width, input_bias)
        self.key = nn.Linear(memory_width, key_query_width, input_bias)
        self.value = nn.Linear(memory_width, value_width, input_bias)
        self.output = nn.Linear(value_width, width, bias)
        self.tap = Tap(*ATTENTION, "attention_output")

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        memory_positions: Tensor | None = None,
    ) -> Tensor:
        """Attend from x (B, Tq, D) to the sequence memory (B, Tk, Dm), by default to x itself. Returns (B, Tq, D).

        memory_positions  vectors that are added to the keys, but not to the values (`project_keys_values`)
        """
        key, value = self.project_keys_values(x if memory is None else memory, memory_positions)
        return self.forward_cached(x, key, value, mask=mask, bias=bias)

    def project_keys_values(self, memory: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the projected keys and values of the sequence memory (B, Tk, Dm), each (B, H, Tk, Dh).

        positions  vectors (B, Tk, Dm) that are added to the keys, but not to the values, before the projection
        """
        return self._split(self.key(added(memory, positions))), self._split(self.value(memory))

    def forward_cached(
        self, x: Tensor, key: Tensor, value: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Attend from x (B, Tq, D) to keys and values that are already projected, each (B, H, Tk, Dh).

        Returns (B, Tq, D).
        """
        mixed = attend(
            self._split(self.query(x)),
            key,
            value,
            mask=mask,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            tap=self.tap,
            explicit=self.explicit,
        )  # (B, H, Tq, Dh)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return self.tap.on("attention_output", output)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # split the heads: (B, T, H*Dh) -> (B, H, T, Dh)


def added(x: Tensor, positions: Tensor | None) -> Tensor:
    """Return x plus the positions, if there are any."""
    return x if positions is None else x + positions
