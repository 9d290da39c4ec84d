"""Key-value cache for incremental decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.core.masks import Mask
from manyheads.errors import UserError


class KVCache:
    """Key-value cache with preallocated memory for every layer of a decoder. Each row of the batch has its own length.

    At each decoding step, every layer appends its keys and values; then the model advances the lengths once. The
    cross-attention entries (keys and values of the encoder output) are computed once. Rows with the same source
    sentence share them.

    layers      number of layers
    batch       number of rows
    heads       number of attention heads
    capacity    maximum number of positions of a row
    head_width  maximum width of keys and values of a head; keys may be narrower
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
        # Keys and values, (layers, 2, B, H, C, Dh). All layers are in one tensor, so that one copy operation selects
        # rows in all layers.
        self._entries = self._zeros((layers, 2, batch, heads, capacity, head_width))
        self._cross: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self._cross_lengths: Tensor | None = None
        # cross-attention entries repeated for every row of the batch, computed at the first read
        self._expanded: list[tuple[Tensor, Tensor]] | None = None
        self._cross_mask: Mask | None = None
        # index of the source sentence whose cross-attention entries each row uses, (B,)
        self._sources = torch.arange(batch, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)  # (B,)
        self._longest = 0
        # True while all rows have the same length. Appending is then a plain slice, and a single query needs no mask.
        self._equal_lengths = True

    @property
    def batch(self) -> int:
        return self.lengths.shape[0]

    @property
    def capacity(self) -> int:
        return self._entries.shape[4]

    @property
    def offset(self) -> int | Tensor:
        """Return the position of the next token: an int if all rows have the same length, else a tensor (B,).

        Does not synchronize the device.
        """
        return self._longest if self._equal_lengths else self.lengths

    def keys(self, queries: int) -> int:
        """Return the number of key positions that `append` returns if a step adds `queries` new positions.

        Does not synchronize the device.
        """
        return self._longest + queries

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append key and value, each (B, H, T, Dh), after the last position of each row.

        Returns all keys and values of this layer up to the longest row, (B, H, longest + T, Dh). Entries beyond the
        length of a row are undefined; `mask` hides them.
        """
        end = self._longest_after_append(key.shape[2])
        keys, values = (
            self._entries[layer, i, : self.batch, ..., : entry.shape[-1]] for i, entry in enumerate((key, value))
        )
        if self._equal_lengths:
            keys[:, :, self._longest : end] = key
            values[:, :, self._longest : end] = value
        else:
            rows = torch.arange(self.batch, device=key.device)[:, None]
            at = self.lengths[:, None] + torch.arange(key.shape[2], device=key.device)  # (B, T)
            keys[rows, :, at] = key.transpose(1, 2).to(keys.dtype)
            values[rows, :, at] = value.transpose(1, 2).to(values.dtype)
        return keys[:, :, :end].to(key.dtype), values[:, :, :end].to(value.dtype)

    def advance(self, count: int | Tensor) -> None:
        """Increase the lengths of the rows by `count`, an int for all rows, or a tensor (B,).

        Entries beyond the lengths are overwritten by the next call of `append`.
        """
        self.lengths = self.lengths + count
        if isinstance(count, int):
            self._longest += count
        else:
            self._update_longest()

    def mask(self, queries: int) -> Mask:
        """Return the attention mask for `queries` new positions of every row.

        The mask applies to the keys that `append` returns.
        """
        # If all rows have the same length, a single query may attend to every key, so no mask is needed.
        return Mask(causal=queries > 1 or not self._equal_lengths, offset=self.offset)

    def set_cross(self, layer: int, key: Tensor, value: Tensor, lengths: Tensor | None) -> None:
        """Store the keys and values of the encoder output for one layer, each (B, H, Ts, Dh).

        lengths  number of source positions of each row that are not padding, (B,)
        """
        assert self._cross[layer] is None, "cross entries are already set"
        self._cross[layer] = (key, value)
        if layer == 0:
            self._cross_lengths = lengths

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the encoder output for every row, each (B, H, Ts, Dh)."""
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
        """Keep only the rows with the given indices (N,), in the order of the indices. An index may repeat.

        Used to reorder the hypotheses of a beam search and to remove finished sentences.
        """
        self._select_entries(rows)
        self.lengths = self.lengths[rows]
        self._update_longest()
        sources = self._sources[rows]
        # The beams of a sentence share their cross-attention entries, so reordering beams copies none of these.
        if not torch.equal(sources, self._sources):
            self._sources, self._expanded, self._cross_mask = sources, None, None

    def _select_entries(self, rows: Tensor) -> None:
        used = self._longest
        # indices of the rows whose content changes; all other rows remain in place
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        selected = self._entries[:, :, :, :, :used].index_select(2, rows[moved])
        self._ensure_rows(len(rows))
        self._entries[:, :, :, :, :used].index_copy_(2, moved, selected)

    def replace(self, rows: Tensor, other: KVCache) -> None:
        """Copy the N rows of another cache of the same model to the rows with the given indices (N,).

        The cross-attention entries do not change.
        """
        used = other._longest
        self._entries[:, :, rows, :, :used] = other._entries[:, :, : other.batch, :, :used]
        self.lengths = self.lengths.index_copy(0, rows, other.lengths)
        self._update_longest()

    def _cross_entries(self) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values of the encoder output for every layer, each (Bs, H, Ts, Dh).

        Each of the Bs rows is a source sentence.
        """
        entries = [entry for entry in self._cross if entry is not None]
        assert len(entries) == len(self._cross), "the cache has no cross entries: call start() of the model first"
        return entries

    def _longest_after_append(self, new: int) -> int:
        """Return the length of the longest row after `new` more positions.

        Raises UserError if it exceeds the capacity.
        """
        end = self._longest + new
        if end > self.capacity:
            raise UserError(
                f"the cache has {self.capacity} positions, but {end} are needed: create it with a larger capacity"
            )
        return end

    def _ensure_rows(self, rows: int) -> None:
        """Enlarge the cache to at least `rows` rows. The content is kept."""
        old, used = self._entries, self._longest
        slots = old.shape[2]
        if rows > slots:
            self._entries = self._zeros([*old.shape[:2], rows, *old.shape[3:]])
            self._entries[:, :, :slots, :, :used] = old[:, :, :, :, :used]

    def _zeros(self, shape: Sequence[int]) -> Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def _update_longest(self) -> None:
        if self.batch:
            longest, shortest = int(self.lengths.max()), int(self.lengths.min())
            self._longest, self._equal_lengths = longest, longest == shortest


class StateCache:
    """Cache of a decoder whose state has a constant size, such as recurrent states or the last inputs of convolutions.

    states  tensors of the decoder, each (B, ...); a step of the model replaces them
    memory  tensors of the encoder output, each (Bs, ...) for Bs sources, such as states, keys or lengths. Rows with the
            same source share them
    """

    def __init__(self, states: Sequence[Tensor], memory: Sequence[Tensor | None] = ()) -> None:
        self.states = [*states]
        self._memory = [*memory]
        self._expanded: list[Tensor | None] | None = self._memory
        batch, device = len(self.states[0]), self.states[0].device
        self._sources = torch.arange(batch, device=device)  # index of the source of each row, (B,)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)  # (B,)

    @property
    def memory(self) -> list[Tensor | None]:
        """Return the tensors of the encoder output for every row, each (B, ...)."""
        if self._expanded is None:
            self._expanded = [None if tensor is None else tensor[self._sources] for tensor in self._memory]
        return self._expanded

    def select(self, rows: Tensor) -> None:
        """Keep only the rows with the given indices (N,), in that order; an index may repeat."""
        self.states = [state[rows] for state in self.states]
        self.lengths = self.lengths[rows]
        sources = self._sources[rows]
        # The beams of a sentence have the same source, so reordering beams does not copy the encoder output.
        if not torch.equal(sources, self._sources):
            self._sources, self._expanded = sources, None
