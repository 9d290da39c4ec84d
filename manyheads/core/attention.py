"""Attention, once: scores -> bias -> mask -> normalise -> tap -> dropout -> mix.

Every attention of the package calls `attend`: self, cross and causal attention, windows and packed sequences, additive
attention, non-local blocks, local and convolutional attention. They differ in projection, scores, bias and mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.dropout import dropout as drop
from manyheads.core.masks import Mask
from manyheads.core.tap import Calculation, Tap
from manyheads.errors import UserError

Normalise = Literal["softmax", "count"]

# Entries of a map (Tq x Tk) up to which a CPU is faster with the explicit way than with the fused kernel, forward and
# backward: a tenth to a quarter on a 4 + 4 layer translator with sentences of 13 to 18 tokens.
SMALL_MAP = 32 * 32
# The same where gradients are wanted: the kernel's backward is slower than the products of a whole map (ViT-Ti, 197 x
# 197: 26 ms a layer against 16). With dropout it keeps the whole map, too, and waits for PyTorch's random generator.
TRAINED_MAP = 256 * 256


def attend(
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    *,
    mask: Mask | None = None,
    bias: Tensor | None = None,
    scores: Tensor | None = None,
    scale: float | None = None,
    normalise: Normalise = "softmax",
    dropout: float = 0.0,
    tap: Tap | None = None,
    explicit: bool | None = None,
) -> Tensor:
    """Mix the values of the keys that each query matches (Vaswani 2017, section 3.2.1).

    query (B, H, ..., Tq, Dh), key (B, H, ..., Tk, Dh), value (B, H, ..., Tk, Dv) -> (B, H, ..., Tq, Dv)
    mask       which keys a query may look at; a query that may look at none gets zeros.
    bias       added to the scaled scores, broadcasts to (B, H, ..., Tq, Tk).
    scores     (B, H, ..., Tq, Tk) instead of scale * query @ key^T, then key may be None (additive attention).
    scale      1 / sqrt(Dh) unless given.
    normalise  "softmax", or "count": scores divided by the number of keys looked at (Wang 2018, section 3.2).
    dropout    probability of dropping a weight.
    tap        where the map can be recorded or edited.
    explicit   True keeps the whole map, False never does without need; None lets the machine decide: the explicit way
               is the faster one on a CPU while the map is small, and where it is trained with dropout.
    """
    assert (key is None) == (scores is not None), "scores come from a key or are given"
    queries, keys, dims = query.shape[-2], value.shape[-2], query.dim()
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    # What both ways of computing read is defined here, before the branch, so that they cannot drift apart.
    triangle = mask is not None and bias is None and mask.only_causal(queries, keys)
    trained = torch.is_grad_enabled() and value.requires_grad

    def allowed() -> Tensor | None:
        """The mask spelt out; not needed where the kernel knows the triangle."""
        return None if mask is None else mask.materialise(queries, keys, query.device)

    def weights(heads: Sequence[int] | None = None, rows: Sequence[int] | None = None) -> Tensor:
        """The map of some heads and query rows (all by default): (B, h, ..., tq, Tk)."""
        if scores is None:
            assert key is not None
            raw = _product(_pick(query, heads, rows, dims), _pick(key, heads, None, dims), scale)
        else:
            raw = _pick(scores, heads, rows, dims)
        raw = raw if bias is None else raw + _pick(bias, heads, rows, dims)
        looked = allowed()
        looked = None if looked is None else _pick(looked, heads, rows, dims)
        return _normalise(raw, looked, normalise, hides=bias is not None or scores is not None)

    def calculation(heads: Sequence[int] | None) -> Calculation:
        """What the map of some heads is computed from."""
        if key is None or normalise != "softmax":
            raise UserError("the maps of this attention are no softmax over products of queries and keys")
        looked, added = allowed(), bias
        if looked is not None:
            hidden = torch.zeros(looked.shape, device=query.device).masked_fill(~looked, -math.inf)
            added = hidden if bias is None else bias + hidden

        def part(tensor: Tensor) -> Tensor:
            return _pick(tensor, heads, None, dims).detach().clone()

        return Calculation(part(query), part(key), part(value), scale, None if added is None else part(added))

    if tap is not None and tap.calculations:
        tap.record_calculation(calculation)
    if explicit is None:
        explicit = query.device.type == "cpu" and (
            queries * keys <= SMALL_MAP
            or (trained and (dropout > 0.0 or (not triangle and queries * keys <= TRAINED_MAP)))
        )
    if explicit or scores is not None or normalise != "softmax" or (tap is not None and tap.edits_maps):
        full = weights()
        if tap is not None:
            full = tap.saw_map(full)
        mixed = drop(full.to(value.dtype), dropout) @ value  # (B, H, ..., Tq, Dv)
    else:
        assert key is not None
        if tap is not None:
            tap.record(weights, queries)
        table = None if triangle else allowed()
        if bias is not None:
            table = (bias if table is None else bias.masked_fill(~table, -math.inf)).to(query.dtype)
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=table, dropout_p=dropout, is_causal=triangle, scale=scale
        )
    return mixed if tap is None else tap.saw_output(mixed)


def _product(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scores in float32 at least, as the fused kernels keep them, whatever precision the model runs in."""
    wide = torch.promote_types(query.dtype, torch.float32)
    device = "cpu" if query.is_meta else query.device.type  # autocast does not know the device of shapes alone
    with torch.autocast(device, enabled=False):
        return (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)


def _pick(tensor: Tensor, heads: Sequence[int] | None, rows: Sequence[int] | None, dims: int) -> Tensor:
    """Some heads and rows of what broadcasts to (B, H, ..., T, X) of `dims` dimensions; those it broadcasts stay."""
    axis = tensor.dim() - dims + 1  # of the heads: a bias (H, Tq, Tk) or (Tq, Tk) has it further left, or has none
    if heads is not None and axis >= 0 and tensor.shape[axis] > 1:
        tensor = tensor[(slice(None),) * axis + (list(heads),)]
    if rows is not None and tensor.dim() > 1 and tensor.shape[-2] > 1:
        tensor = tensor[..., list(rows), :]
    return tensor


def _normalise(scores: Tensor, allowed: Tensor | None, how: Normalise, hides: bool) -> Tensor:
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
        key, value = self.keys_values(x if memory is None else memory)
        return self.look(x, key, value, mask=mask, bias=bias)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What a cache keeps of memory (B, Tk, Dm): key and value, each (B, H, Tk, Dh)."""
        return self._split(self.key(memory)), self._split(self.value(memory))

    def look(
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
