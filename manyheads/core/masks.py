"""Attention masks.

A `Mask` describes which keys a query may attend to: key lengths, causality, window, packed segments, or an explicit
table. `attend` passes simple masks to a fused kernel and calls `materialize` for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from manyheads.errors import UserError


@dataclass(frozen=True, eq=False)
class Mask:
    """Attention mask: the keys that each query may attend to.

    Every field is a restriction; the defaults allow all keys.

    key_lengths  number of keys of each row that are not padding, (B,).
    causal       if True, a query attends only to keys at its own position and at earlier positions.
    offset       position of the first query among the keys, an int or (B,). By default, the last query is at the last
                 key (offset Tk - Tq), as decoding with a cache requires. In contrast, PyTorch's `is_causal` places the
                 first query at the first key.
    window       maximum distance of a key from the query, in positions.
    segments     segment index of each query and each key of packed sequences, ((B, Tq), (B, Tk)); a query attends only
                 to keys of the same segment.
    dense        boolean table that broadcasts to (B, H, Tq, Tk), True where a query may attend to a key.
    """

    key_lengths: Tensor | None = None
    causal: bool = False
    offset: int | Tensor | None = None
    window: int | None = None
    segments: tuple[Tensor, Tensor] | None = None
    dense: Tensor | None = None
    _tables: dict[tuple[int, int, torch.device], Tensor | None] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 0:
            raise UserError(f"expected a window of 0 or more, found {self.window}")
        if self.dense is not None and self.dense.dtype != torch.bool:
            raise UserError(
                f"expected a boolean dense mask (True: may attend), found {self.dense.dtype}; pass floats as bias"
            )

    def __and__(self, other: Mask) -> Mask:
        """Return a mask that allows only the keys that both masks allow.

        Raises UserError if both masks set the same field to different values, or if only one of two positional masks
        has an offset.
        """
        positional = [mask for mask in (self, other) if mask.causal or mask.window is not None]
        if len(positional) == 2 and (self.offset is None) != (other.offset is None):
            raise UserError("both masks depend on positions, but only one has an offset; give both the same offset")
        merged = {}
        for name in ("key_lengths", "offset", "window", "segments", "dense"):
            value, other_value = getattr(self, name), getattr(other, name)
            equal = value is other_value or (
                isinstance(value, int) and isinstance(other_value, int) and value == other_value
            )
            if value is not None and other_value is not None and not equal:
                raise UserError(f"both masks set {name}: combine the values in one mask (dense tables with &)")
            merged[name] = value if other_value is None else other_value
        return Mask(causal=self.causal or other.causal, **merged)

    def is_plain_causal(self, queries: int, keys: int) -> bool:
        """Return True for a square causal mask without other restrictions, which fused kernels support."""
        used = [f.name for f in fields(self) if f.init and f.name != "causal" and getattr(self, f.name) is not None]
        aligned = queries == keys and (self.offset is None or (isinstance(self.offset, int) and self.offset == 0))
        return self.causal and aligned and used in ([], ["offset"])

    def materialize(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return the mask as a boolean table (B or 1, H or 1, Tq, Tk), True where a query may attend to a key.

        Returns None if every query may attend to all keys. Tables are cached by shape, because the layers of a model
        share one mask.
        """
        if torch.compiler.is_compiling():  # Do not cache by size: the compiler would recompile for each size.
            return self._build_mask_table(queries, keys, device)
        key = (queries, keys, device)
        if key not in self._tables:
            self._tables[key] = self._build_mask_table(queries, keys, device)
        return self._tables[key]

    def _build_mask_table(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        rules: list[Tensor] = []
        k = torch.arange(keys, device=device)
        if self.key_lengths is not None:
            # True for keys that are not padding, (B, 1, 1, Tk)
            rules.append((k < self.key_lengths.to(device)[:, None])[:, None, None, :])
        if self.causal or self.window is not None:
            offset = keys - queries if self.offset is None else self.offset
            first = torch.as_tensor(offset, device=device).reshape(-1, 1)  # position of the first query, (B or 1, 1)
            q = (first + torch.arange(queries, device=device))[:, None, :, None]  # query positions, (B or 1, 1, Tq, 1)
            if self.causal:
                rules.append(k <= q)
            if self.window is not None:
                rules.append((k - q).abs() <= self.window)
        if self.segments is not None:
            query_segments, key_segments = self.segments
            # True if query and key are in the same segment, (B, 1, Tq, Tk)
            rules.append((query_segments[:, :, None] == key_segments[:, None, :])[:, None].to(device))
        if self.dense is not None:
            rules.append(self.dense.to(device))
        if not rules:
            return None
        table = rules[0]
        for rule in rules[1:]:
            table = table & rule
        return table.expand(*table.shape[:-2], queries, keys)


def padding(lengths: Tensor, positions: int, device: torch.device) -> Tensor:
    """Return a mask (B, T, 1) of padding: True at the positions after the last token of each row.

    lengths  (B,) number of tokens of each row
    """
    return (torch.arange(positions, device=device) >= lengths.to(device)[:, None])[..., None]
