"""Attention, once: scores -> bias -> mask -> normalise -> tap -> dropout -> mix.

Every attention of the package calls `attend`: self, cross and causal attention, windows and packed sequences, additive
attention, non-local blocks, local and convolutional attention. They differ in projection, scores, bias and mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.dropout import dropout as drop
from manyheads.core.masks import Mask
from manyheads.core.tap import Calculation, Tap
from manyheads.errors import UserError

Normalize = Literal["softmax", "count"]

# Entries of a map (Tq x Tk) up to which a CPU is faster with the explicit way than with the fused kernel, forward and
# backward: a tenth to a quarter on a 4 + 4 layer translator with sentences of 13 to 18 tokens.
SMALL_MAP = 32 * 32
# The same where gradients are wanted: the kernel's backward is slower than the products of a whole map (ViT-Ti, 197 x
# 197: 26 ms a layer against 16). With dropout it keeps the whole map, too, and waits for PyTorch's random generator.
TRAINED_MAP = 256 * 256


@dataclass(slots=True, eq=False)
class _AttentionMap:
    """The map of one call of `attend`, computed when it is needed, whole or in part. The fields are its arguments."""

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
        """True if the fused kernel computes this mask by itself."""
        return self.mask is not None and self.bias is None and self.mask.is_plain_causal(self.queries, self.keys)

    def allowed(self) -> Tensor | None:
        """Return the mask as a table, True where a query may attend; None if it may attend everywhere."""
        return None if self.mask is None else self.mask.materialize(self.queries, self.keys, self.query.device)

    def weights(self, heads: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> Tensor:
        """Return the map of some heads and query rows (default: all), (B, h, ..., tq, Tk)."""
        if self.scores is None:
            assert self.key is not None
            raw = _product(self._part(self.query, heads, rows), self._part(self.key, heads), self.scale)
        else:
            raw = self._part(self.scores, heads, rows)
        raw = raw if self.bias is None else raw + self._part(self.bias, heads, rows)
        allowed = self.allowed()
        allowed = None if allowed is None else self._part(allowed, heads, rows)
        return _normalize(raw, allowed, self.normalize, hides=self.bias is not None or self.scores is not None)

    def calculation(self, heads: Sequence[int] | None) -> Calculation:
        """Return what the map of some heads is computed from."""
        if self.key is None or self.normalize != "softmax":
            raise UserError("the maps of this attention are no softmax over products of queries and keys")
        allowed, added = self.allowed(), self.bias
        if allowed is not None:
            hidden = torch.zeros(allowed.shape, device=self.query.device).masked_fill(~allowed, -math.inf)
            added = hidden if self.bias is None else self.bias + hidden

        def part(tensor: Tensor) -> Tensor:
            return self._part(tensor, heads).detach().clone()

        query, key, value = part(self.query), part(self.key), part(self.value)
        return Calculation(query, key, value, self.scale, None if added is None else part(added))

    def fused(self, dropout: float) -> Tensor:
        """Return what each query mixes, (B, H, ..., Tq, Dv), without computing the map."""
        assert self.key is not None
        triangle = self.is_plain_causal
        table = None if triangle else self.allowed()
        if self.bias is not None:
            table = (self.bias if table is None else self.bias.masked_fill(~table, -math.inf)).to(self.query.dtype)
        return F.scaled_dot_product_attention(
            self.query, self.key, self.value, attn_mask=table, dropout_p=dropout, is_causal=triangle, scale=self.scale
        )

    def explicit_is_faster(self, dropout: float) -> bool:
        """True on a CPU while the map is small, and if it is trained with dropout."""
        if self.query.device.type != "cpu":
            return False
        size = self.queries * self.keys
        if size <= SMALL_MAP or not (torch.is_grad_enabled() and self.value.requires_grad):
            return size <= SMALL_MAP
        return dropout > 0.0 or (size <= TRAINED_MAP and not self.is_plain_causal)

    def _part(self, tensor: Tensor, heads: Sequence[int] | None, rows: Sequence[int] | None = None) -> Tensor:
        """Select heads and rows of a tensor that broadcasts to (B, H, ..., T, X); dimensions it broadcasts stay."""
        axis = tensor.dim() - self.query.dim() + 1  # of the heads; a bias (H, Tq, Tk) has it further left, or has none
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
    """Mix the values of the keys that each query matches (Vaswani 2017, section 3.2.1).

    query (B, H, ..., Tq, Dh), key (B, H, ..., Tk, Dh), value (B, H, ..., Tk, Dv) -> (B, H, ..., Tq, Dv)
    mask       which keys a query may attend to; a query that may attend to none gets zeros.
    bias       added to the scaled scores, broadcasts to (B, H, ..., Tq, Tk).
    scores     (B, H, ..., Tq, Tk) instead of scale * query @ key^T, then key may be None (additive attention).
    scale      1 / sqrt(Dh) unless given.
    normalise  "softmax", or "count": scores divided by the number of allowed keys (Wang 2018, section 3.2).
    dropout    probability of dropping a weight.
    tap        where the map can be recorded or edited.
    explicit   True computes the whole map, False only if it is needed; None takes the faster way on this device.
    """
    assert (key is None) == (scores is not None), "scores come from a key or are given"
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    # both ways of computing read the same mask and bias, so that they cannot drift apart
    map = _AttentionMap(query, key, value, mask, bias, scores, scale, normalize)
    if tap is not None and tap.calculations:
        tap.record_calculation(map.calculation)
    if explicit is None:
        explicit = map.explicit_is_faster(dropout)
    if explicit or scores is not None or normalize != "softmax" or (tap is not None and tap.edits_maps):
        weights = map.weights()
        if tap is not None:
            weights = tap.on_pattern(weights)
        mixed = drop(weights.to(value.dtype), dropout) @ value  # (B, H, ..., Tq, Dv)
    else:
        if tap is not None:
            tap.record(map.weights, map.queries)
        mixed = map.fused(dropout)
    return mixed if tap is None else tap.on_output(mixed)


def _product(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scores in float32 at least, as the fused kernels keep them, whatever precision the model runs in."""
    wide = torch.promote_types(query.dtype, torch.float32)
    device = "cpu" if query.is_meta else query.device.type  # autocast does not know the device of shapes alone
    with torch.autocast(device, enabled=False):
        return (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)


def _normalize(scores: Tensor, allowed: Tensor | None, how: Normalize, hides: bool) -> Tensor:
    """The one place where scores become weights. A row that may look nowhere becomes zeros, and so do its gradients.

    hides  scores may be minus infinity of their own, by a bias
    """
    if how == "count":
        if allowed is None:
            return scores / scores.shape[-1]
        count = allowed.sum(-1, keepdim=True).clamp(min=1)
        return scores.masked_fill(~allowed, 0.0) / count
    if allowed is None and not hides:
        return scores.softmax(-1)
    if hides:
        scores = scores if allowed is None else scores.masked_fill(~allowed, -math.inf)
        empty = scores.amax(-1, keepdim=True) == -math.inf
        return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    assert allowed is not None
    # Sums and products with small tables: filling by booleans, three times, took longer than everything else here. The
    # lowest number leaves an empty row finite, and every other row as minus infinity would.
    lowest = torch.zeros_like(allowed, dtype=scores.dtype).masked_fill_(~allowed, torch.finfo(scores.dtype).min)
    return (scores + lowest).softmax(-1) * allowed.any(-1, keepdim=True).to(scores.dtype)


class Attention(nn.Module):
    """Multi-head attention: projections around `attend` (Vaswani 2017, section 3.2.2).

    width         D of the input and the output.
    heads         H.
    head_width    Dh; None for the paper's width / heads, any other number for Keras-style free heads (`key_dim`).
    key_width     width of each head's queries and keys, where it differs from that of its values (Table 3, row B).
    memory_width  width of what is attended to, where it differs from `width`.
    bias          whether the four projections have one.
    qkv_bias      the same of those of queries, keys and values, where it differs from `bias`.
    dropout       on the attention weights, while training.
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
            raise UserError(f"width {width} is not divisible by {heads} heads: change one or give head_width")
        self.heads = heads
        self.head_width = width // heads if head_width is None else head_width
        self.dropout = dropout
        self.explicit: bool | None = None  # see attend
        inner, memory_width = heads * self.head_width, memory_width or width
        matched = heads * (key_width or self.head_width)
        read_bias = bias if qkv_bias is None else qkv_bias
        self.query = nn.Linear(width, matched, read_bias)
        self.key = nn.Linear(memory_width, matched, read_bias)
        self.value = nn.Linear(memory_width, inner, read_bias)
        self.output = nn.Linear(inner, width, bias)
        self.tap = Tap()

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Mask | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """x (B, Tq, D) looks at memory (B, Tk, Dm), or at itself -> (B, Tq, D)."""
        key, value = self.project_keys_values(x if memory is None else memory)
        return self.forward_cached(x, key, value, mask=mask, bias=bias)

    def project_keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What a cache keeps of memory (B, Tk, Dm): key and value, each (B, H, Tk, Dh)."""
        return self._split(self.key(memory)), self._split(self.value(memory))

    def forward_cached(
        self, x: Tensor, key: Tensor, value: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """x (B, Tq, D) looks at keys and values (B, H, Tk, Dh) computed before -> (B, Tq, D)."""
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
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, T, H*Dh) -> (B, H, T, Dh)
