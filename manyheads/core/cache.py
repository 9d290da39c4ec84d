"""Keys and values that decoding has already computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.core.masks import Mask
from manyheads.errors import UserError


class KVCache:
    """Preallocated keys and values of every layer of one decoder, with a length of its own for every row.

    A step appends in each layer and the model advances the lengths once, after the last layer. Cross entries (the
    keys and values of an encoder's output) are computed once, and rows with one source share them.

    layers, batch, heads, capacity, head_width: sizes; `capacity` is the largest number of positions a row can hold, and
    keys may be narrower than head_width.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        capacity: int,
        head_width: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self._dtype, self._device = dtype, device
        # (layers, key or value, B, H, C, Dh): one tensor, so that selecting rows is one copy for all layers
        self._entries = self._zeros((layers, 2, batch, heads, capacity, head_width))
        self._cross: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self._cross_lengths: Tensor | None = None
        self._expanded: list[tuple[Tensor, Tensor]] | None = None  # cross entries of every row, once they were read
        self._cross_mask: Mask | None = None
        self._sources = torch.arange(batch, device=device)  # which original row each row's cross entries come from
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)  # (B,)
        self._longest = 0
        self._even = True  # all rows have the same length: appending is a plain slice, one query needs no mask

    @property
    def batch(self) -> int:
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        return self._entries.shape[4]

    @property
    def offset(self) -> int | Tensor:
        """Position of the next token: one number if all rows have the same length, else (B,). Reads no device."""
        return self._longest if self._even else self.lengths

    def keys(self, queries: int) -> int:
        """Return the number of keys that `append` returns for `queries` new positions. Reads no device."""
        return self._longest + queries

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write key, value (B, H, T, Dh) behind each row's own length.

        Returns that layer's keys and values up to the longest row, (B, H, longest + T, Dh); what lies beyond a row's
        own length is hidden by `mask`.
        """
        end = self._end(key.shape[2])
        keys, values = (
            self._entries[layer, i, : self.batch, ..., : entry.shape[-1]] for i, entry in enumerate((key, value))
        )
        if self._even:
            keys[:, :, self._longest : end] = key
            values[:, :, self._longest : end] = value
        else:
            rows = torch.arange(self.batch, device=key.device)[:, None]
            at = self.lengths[:, None] + torch.arange(key.shape[2], device=key.device)  # (B, T)
            keys[rows, :, at] = key.transpose(1, 2).to(keys.dtype)
            values[rows, :, at] = value.transpose(1, 2).to(values.dtype)
        return keys[:, :, :end].to(key.dtype), values[:, :, :end].to(value.dtype)

    def advance(self, positions: int | Tensor) -> None:
        """Count `positions` new ones (for all rows, or (B,) for each); what a row appended beyond is overwritten."""
        self.lengths = self.lengths + positions
        if isinstance(positions, int):
            self._longest += positions
        else:
            self._settle()

    def mask(self, queries: int) -> Mask:
        """The rule for `queries` new positions of every row, to be used with what `append` returns."""
        # one query of rows of equal length sees every key: no table is needed
        return Mask(causal=queries > 1 or not self._even, offset=self.offset)

    def set_cross(self, layer: int, key: Tensor, value: Tensor, lengths: Tensor | None) -> None:
        """Fix the cross entries of a layer, (B, H, Ts, Dh), of which `lengths` (B,) are real."""
        assert self._cross[layer] is None, "cross entries are fixed after first use"
        self._cross[layer] = (key, value)
        if layer == 0:
            self._cross_lengths = lengths

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the cross entries of every row, (B, H, Ts, Dh)."""
        if self._expanded is None:
            entries, at = self._cross_entries(), self._sources
            moved = at.shape[0] != entries[0][0].shape[0] or bool((at != torch.arange(len(at), device=at.device)).any())
            self._expanded = [(key[at], value[at]) for key, value in entries] if moved else entries
        return self._expanded[layer]

    def cross_mask(self) -> Mask:
        if self._cross_mask is None:
            lengths = self._cross_lengths
            self._cross_mask = Mask(key_lengths=None if lengths is None else lengths[self._sources])
        return self._cross_mask

    def select(self, rows: Tensor) -> None:
        """Keep rows (N,), in that order, repeated where a number is repeated: beams, finished sentences."""
        self._select_entries(rows)
        self.lengths = self.lengths[rows]
        self._settle()
        sources = self._sources[rows]
        # Beams of one sentence share its cross entries: reordering them moves nothing.
        if not torch.equal(sources, self._sources):
            self._sources, self._expanded, self._cross_mask = sources, None, None

    def _select_entries(self, rows: Tensor) -> None:
        used = self._longest
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]  # the others stay in place
        kept = self._entries[:, :, :, :, :used].index_select(2, rows[moved])
        self._make_room(len(rows))
        self._entries[:, :, :, :, :used].index_copy_(2, moved, kept)

    def replace(self, rows: Tensor, other: KVCache) -> None:
        """Rows (N,) hold what the N rows of another cache of the same model hold; their cross entries stay."""
        used = other._longest
        self._entries[:, :, rows, :, :used] = other._entries[:, :, : other.batch, :, :used]
        self.lengths = self.lengths.index_copy(0, rows, other.lengths)
        self._settle()

    def _cross_entries(self) -> list[tuple[Tensor, Tensor]]:
        """Return the cross entries of every layer, each (Bs, H, Ts, Dh), a row for each source."""
        entries = [entry for entry in self._cross if entry is not None]
        assert len(entries) == len(self._cross), "no cross entries: the model's start() fills them"
        return entries

    def _end(self, new: int) -> int:
        """Positions of the longest row with so many new ones."""
        end = self._longest + new
        if end > self.capacity:
            raise UserError(f"the cache holds {self.capacity} positions, {end} are needed: start with a larger one")
        return end

    def _make_room(self, rows: int) -> None:
        """Grow to at least `rows` slots and keep their content."""
        old, used = self._entries, self._longest
        slots = old.shape[2]
        if rows > slots:
            self._entries = self._zeros([*old.shape[:2], rows, *old.shape[3:]])
            self._entries[:, :, :slots, :, :used] = old[:, :, :, :, :used]

    def _zeros(self, shape: Sequence[int]) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def _settle(self) -> None:
        if self.batch:
            longest, shortest = int(self.lengths.max()), int(self.lengths.min())
            self._longest, self._even = longest, longest == shortest
