"""Keys and values that decoding has already computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from manyheads.core.masks import Mask
from manyheads.errors import UserError


class KVCache:
    """Preallocated keys and values of every layer of one decoder, with a length of its own for every row.

    A step appends in each layer and the model advances the lengths once, after the last layer. Cross entries (the
    keys and values of an encoder's output) are computed once, and rows with one source share them.

    Where a fused kernel reads it (`reserve`), rows that change places take no data with them: a table says in which
    slot each position of a row is.

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
        # (layers, key or value, B, H, C, Dh): one tensor, so that selecting rows is one copy for all layers; without
        # memory of its own until something is to be written, for a kernel wants another
        shape = (layers, 2, batch, heads, capacity, head_width)
        self._entries = torch.zeros((), dtype=dtype, device=device).expand(shape)
        self._slots: Tensor | None = None  # (B, longest) where each position is; None: all of row b in slot b
        self._zeros: Callable[[Sequence[int]], Tensor] | None = None  # a kernel's; then rows move in the table only
        self._cross: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self._cross_lengths: Tensor | None = None
        self._kept: Callable[[Tensor], Tensor] | None = None  # what has become of the cross entries
        self._shared: list[tuple[Tensor, Tensor]] | None = None  # cross entries of every row, where they were asked for
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

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write key, value (B, H, T, Dh) behind each row's own length.

        Returns that layer's keys and values up to the longest row, (B, H, longest + T, Dh); what lies beyond a row's
        own length is hidden by `mask`.
        """
        end = self._end(key.shape[2])
        self._gather()
        self._make_room(self.batch)
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

    def reserve(self, positions: int, zeros: Callable[[Sequence[int]], Tensor]) -> tuple[Tensor, Tensor | None]:
        """For a kernel that appends `positions` new ones to each row by itself, before `advance` counts them.

        zeros  of a shape, in the memory and the precision that the kernel wants

        Returns the entries (layers, key or value, slots, H, C, Dh) and, where rows have changed places, the slots
        (B, longest + positions) of all positions; row b's new ones belong into slot b.
        """
        self._end(positions)
        if self._zeros is not zeros:
            self._zeros = zeros
            self._make_room(self.batch, anew=True)
        self._make_room(self.batch)
        if self._slots is not None:
            own = torch.arange(self.batch, device=self._slots.device)[:, None].expand(-1, positions)
            self._slots = torch.cat([self._slots[:, : self._longest], own], dim=1)
        return self._entries, self._slots

    def advance(self, positions: int | Tensor) -> None:
        """Count `positions` new ones (for all rows, or (B,) for each); what a row appended beyond is overwritten."""
        self.lengths = self.lengths + positions
        if isinstance(positions, int):
            self._longest += positions
        else:
            self._gather()  # rows of unequal length write into their own slots, which others must not read any more
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

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        """The cross entries of every row: (B, H, Ts, Dh)."""
        if self._shared is None:
            entries, _, _ = self.sources()
            at = self._sources
            moved = at.shape[0] != entries[0][0].shape[0] or bool((at != torch.arange(len(at), device=at.device)).any())
            if moved:
                entries = [(key[at], value[at]) for key, value in entries]
            if self._kept is not None:  # and a module reads it after all
                entries = [(key.float(), value.float()) for key, value in entries]
            self._shared = entries
        return self._shared[layer]

    def cross_mask(self) -> Mask:
        if self._cross_mask is None:
            lengths = self._cross_lengths
            self._cross_mask = Mask(key_lengths=None if lengths is None else lengths[self._sources])
        return self._cross_mask

    def sources(
        self, kept: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor | None]:
        """The cross entries of every layer, each (Bs, H, Ts, Dh), which of their rows each row reads (B,), and how many
        positions are real (Bs,).

        kept  what becomes of an entry, once: the precision and layout that a kernel wants
        """
        entries = [entry for entry in self._cross if entry is not None]
        assert len(entries) == len(self._cross), "no cross entries: the model's start() fills them"
        if kept is not None and self._kept is not kept:
            self._kept, entries = kept, [(kept(key), kept(value)) for key, value in entries]
            self._cross, self._shared = [*entries], None
        return entries, self._sources, self._cross_lengths

    def select(self, rows: Tensor) -> None:
        """Keep rows (N,), in that order, repeated where a number is repeated: beams, finished sentences."""
        used = self._longest
        if self._zeros is not None and self._even:
            own = torch.arange(self.batch, device=rows.device)[:, None].expand(-1, used)
            self._slots = (own if self._slots is None else self._slots[:, :used])[rows]
        else:
            self._gather()
            moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]  # the others stay in place
            kept = self._entries[:, :, :, :, :used].index_select(2, rows[moved])
            self._make_room(len(rows))
            self._entries[:, :, :, :, :used].index_copy_(2, moved, kept)
        self.lengths = self.lengths[rows]
        self._settle()
        sources = self._sources[rows]
        # Beams of one sentence share its cross entries: reordering them moves nothing.
        if not torch.equal(sources, self._sources):
            self._sources, self._shared, self._cross_mask = sources, None, None

    def replace(self, rows: Tensor, other: KVCache) -> None:
        """Rows (N,) hold what the N rows of another cache of the same model hold; their cross entries stay."""
        used = other._longest
        self._gather()
        self._make_room(self.batch)
        other._gather()
        self._entries[:, :, rows, :, :used] = other._entries[:, :, : other.batch, :, :used]
        self.lengths = self.lengths.index_copy(0, rows, other.lengths)
        self._settle()

    def _end(self, new: int) -> int:
        """Positions of the longest row with so many new ones."""
        end = self._longest + new
        if end > self.capacity:
            raise UserError(f"the cache holds {self.capacity} positions, {end} are needed: start with a larger one")
        return end

    def _make_room(self, rows: int, *, anew: bool = False) -> None:
        """At least so many slots; what they hold stays."""
        old, used = self._entries, self._longest
        slots = old.shape[2]
        if rows > slots or anew or (old.numel() and old.stride(4) == 0):
            shape = [*old.shape[:2], max(rows, slots), *old.shape[3:]]
            self._entries = old.new_zeros(shape) if self._zeros is None else self._zeros(shape)
            self._entries[:, :, :slots, :, :used] = old[:, :, :, :, :used]

    def _gather(self) -> None:
        """Every row's positions into the slot of its number, where a table said otherwise."""
        if self._slots is not None:
            self._make_room(self.batch)
            used = min(self._slots.shape[1], self._longest)
            at = self._slots[None, None, :, None, :used, None].expand(
                *self._entries.shape[:2], -1, self._entries.shape[3], -1, self._entries.shape[5]
            )
            self._entries[:, :, : self.batch, :, :used] = self._entries[:, :, :, :, :used].gather(2, at)
            self._slots = None

    def _settle(self) -> None:
        if self.batch:
            longest, shortest = int(self.lengths.max()), int(self.lengths.min())
            self._longest, self._even = longest, longest == shortest
