"""Key-value cache of a stack with fused kernels.

The kernels write the keys and values of new positions to the cache. A table states where the keys and values of each
row are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyheads.core.cache import KVCache


class FusedCache(KVCache):
    """Key-value cache whose rows can be reordered without copying while they have equal lengths.

    A table contains the memory slot of each position of a row; kernels read keys and values through this table. If
    another module reads or writes the cache, keys and values are first moved to the slots that this module expects.

    half  True to store keys and values in bfloat16, False in float32
    """

    def __init__(self, layers: int, batch: int, heads: int, capacity: int, head_width: int, *, half: bool) -> None:
        self._half = half
        # memory slot of each position of each row, (B, longest). If None, all positions of row b are in slot b.
        self._slots: Tensor | None = None
        super().__init__(layers, batch, heads, capacity, head_width)

    def reserve(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Prepare the cache for a kernel that appends `count` new positions to each row.

        Returns the memory of the keys and values (layers, 2, slots, H, C, Dh) and, if rows have been reordered, the
        slots (B, longest + count) of all positions. The kernel must write the new positions of row b into slot b. The
        caller must then call `advance`.
        """
        self._longest_after_append(count)
        self._ensure_rows(self.batch)
        if self._slots is not None:
            own = torch.arange(self.batch)[:, None].expand(-1, count)
            self._slots = torch.cat([self._slots[:, : self._longest], own], dim=1)
        return self._entries, self._slots

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self._gather()
        self._ensure_rows(self.batch)
        return super().append(layer, key, value)

    def advance(self, count: int | Tensor) -> None:
        if not isinstance(count, int):
            # If rows have unequal lengths, later positions overwrite the slot of their row. No other row may depend on
            # the content of this slot.
            self._gather()
        super().advance(count)

    def set_cross(self, layer: int, key: Tensor, value: Tensor, lengths: Tensor | None) -> None:
        """Store the keys and values of the encoder output in the precision of the kernel.

        The values of each head are contiguous in memory.
        """
        dtype = torch.bfloat16 if self._half else torch.float32
        super().set_cross(layer, key.to(dtype).contiguous(), value.to(dtype).contiguous(), lengths)

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        if self._expanded is None:
            super().cross(layer)
            assert self._expanded is not None
            self._expanded = [(key.float(), value.float()) for key, value in self._expanded]
        return self._expanded[layer]

    def sources(self) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor | None]:
        """Return the inputs of cross-attention for a kernel.

        These are the keys and values of the encoder output for every layer, each (Bs, H, Ts, Dh), the index of the
        source sentence of each row (B,), and the lengths of the source sentences (Bs,).
        """
        return self._cross_entries(), self._sources, self._cross_lengths

    def replace(self, rows: Tensor, other: KVCache) -> None:
        assert isinstance(other, FusedCache)
        self._gather()
        self._ensure_rows(self.batch)
        other._gather()
        super().replace(rows, other)

    def _select_entries(self, rows: Tensor) -> None:
        if not self._equal_lengths:
            self._gather()
            return super()._select_entries(rows)
        used = self._longest
        own = torch.arange(self.batch)[:, None].expand(-1, used)
        self._slots = (own if self._slots is None else self._slots[:, :used])[rows]

    def _gather(self) -> None:
        """Move all positions of each row b to slot b, if some of them are in other slots according to the table."""
        if self._slots is None:
            return
        self._ensure_rows(self.batch)
        used = min(self._slots.shape[1], self._longest)
        at = self._slots[None, None, :, None, :used, None].expand(
            *self._entries.shape[:2], -1, self._entries.shape[3], -1, self._entries.shape[5]
        )
        self._entries[:, :, : self.batch, :, :used] = self._entries[:, :, :, :, :used].gather(2, at)
        self._slots = None

    def _zeros(self, shape: Sequence[int]) -> Tensor:
        """Return a tensor of zeros. NumPy allocates its memory in large pages, because kernels read these faster."""
        if self._half:
            return torch.from_numpy(np.zeros(shape, np.int16)).view(torch.bfloat16)
        return torch.from_numpy(np.zeros(shape, np.float32))
