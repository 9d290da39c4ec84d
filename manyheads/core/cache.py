"""Keys and values that decoding has already computed."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.core.masks import Mask


class KVCache:
    """Preallocated keys and values of every layer of one decoder, with a length of its own for every row.

    A step appends in each layer and the model advances the lengths once, after the last layer. Cross entries (the
    keys and values of an encoder's output) are computed once and only selected from.

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
        # (layers, key or value, B, H, C, Dh): one tensor, so that selecting rows is one copy for all layers
        self._entries = torch.zeros(layers, 2, batch, heads, capacity, head_width, dtype=dtype, device=device)
        self._cross: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self._cross_lengths: Tensor | None = None
        self._cross_mask = Mask()
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

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write key, value (B, H, T, Dh) behind each row's own length.

        Returns that layer's keys and values up to the longest row, (B, H, longest + T, Dh); what lies beyond a row's
        own length is hidden by `mask`.
        """
        new = key.shape[2]
        end = self._longest + new
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions, {end} are needed: start with a larger one")
        keys, values = (
            self._entries[layer, i, : self.batch, ..., : entry.shape[-1]] for i, entry in enumerate((key, value))
        )
        if self._even:
            keys[:, :, self._longest : end] = key
            values[:, :, self._longest : end] = value
        else:
            rows = torch.arange(self.batch, device=key.device)[:, None]
            at = self.lengths[:, None] + torch.arange(new, device=key.device)  # (B, T)
            keys[rows, :, at] = key.transpose(1, 2).to(keys.dtype)
            values[rows, :, at] = value.transpose(1, 2).to(values.dtype)
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, positions: int | Tensor) -> None:
        """Count `positions` new ones (for all rows, or (B,) for each); what a row appended beyond is overwritten."""
        self.lengths = self.lengths + positions
        if isinstance(positions, int):
            self._longest += positions
        else:
            self._settle()

    def mask(self, queries: int) -> Mask:
        """The rule for `queries` new positions of every row, to be used with what `append` returns."""
        if self._even:
            return Mask() if queries == 1 else Mask(causal=True, offset=self._longest)
        return Mask(causal=True, offset=self.lengths)

    def set_cross(self, layer: int, key: Tensor, value: Tensor, lengths: Tensor | None) -> None:
        """Fix the cross entries of a layer, (B, H, Ts, Dh), of which `lengths` (B,) are real."""
        assert self._cross[layer] is None, "cross entries are fixed after first use"
        self._cross[layer] = (key, value)
        if layer == 0:
            self._cross_lengths = lengths
            self._cross_mask = Mask(key_lengths=lengths)

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        entry = self._cross[layer]
        assert entry is not None, "no cross entries: the model's start() fills them"
        return entry

    def cross_mask(self) -> Mask:
        return self._cross_mask

    def select(self, rows: Tensor) -> None:
        """Keep rows (N,), in that order, repeated where a number is repeated: beams, finished sentences."""
        count, used = rows.shape[0], self._longest
        kept = self._entries[:, :, :, :, :used].index_select(2, rows)
        if count > self._entries.shape[2]:
            shape = list(self._entries.shape)
            shape[2] = count
            self._entries = self._entries.new_zeros(shape)
        self._entries[:, :, :count, :, :used] = kept
        self.lengths = self.lengths[rows]
        self._settle()
        sources = self._sources[rows]
        # Beams of one sentence share its cross entries: reordering them moves nothing.
        if not torch.equal(sources, self._sources):
            self._cross = [None if c is None else (c[0][rows], c[1][rows]) for c in self._cross]
            if self._cross_lengths is not None:
                self._cross_lengths = self._cross_lengths[rows]
                self._cross_mask = Mask(key_lengths=self._cross_lengths)
            self._sources = sources

    def replace(self, rows: Tensor, other: KVCache) -> None:
        """Rows (N,) hold what the N rows of another cache of the same model hold; their cross entries stay."""
        used = other._longest
        self._entries[:, :, rows, :, :used] = other._entries[:, :, : other.batch, :, :used]
        self.lengths = self.lengths.index_copy(0, rows, other.lengths)
        self._settle()

    def _settle(self) -> None:
        if self.batch:
            longest, shortest = int(self.lengths.max()), int(self.lengths.min())
            self._longest, self._even = longest, longest == shortest
