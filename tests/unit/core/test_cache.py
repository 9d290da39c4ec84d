"""Preallocated KV cache, compared with lists of tensors under random sequences of decoder operations."""

import random

import pytest
import torch
from torch import Tensor

from manyheads.core.cache import KVCache
from manyheads.inference.cache import FusedCache

LAYERS, HEADS, WIDTH, SOURCE, CAPACITY = 2, 2, 3, 4, 40


class Lists:
    """Expected content of the cache: the keys and values of each row, (layers, 2, H, length, Dh)."""

    def __init__(self, batch: int) -> None:
        self.rows = [torch.zeros(LAYERS, 2, HEADS, 0, WIDTH) for _ in range(batch)]
        self.cross = [torch.randn(LAYERS, 2, HEADS, SOURCE, WIDTH) for _ in range(batch)]
        self.cross_lengths = [random.randint(1, SOURCE) for _ in range(batch)]

    @property
    def lengths(self) -> list[int]:
        return [row.shape[3] for row in self.rows]

    def select(self, rows: list[int]) -> None:
        self.rows = [self.rows[i] for i in rows]
        self.cross = [self.cross[i] for i in rows]
        self.cross_lengths = [self.cross_lengths[i] for i in rows]


def filled(batch: int, capacity: int = CAPACITY, *, fused: bool = False) -> tuple[KVCache, Lists]:
    sizes = (LAYERS, batch, HEADS, capacity, WIDTH)
    cache, lists = FusedCache(*sizes, half=False) if fused else KVCache(*sizes), Lists(batch)
    cross = torch.stack(lists.cross, dim=2)  # (layers, 2, B, H, Ts, Dh)
    for layer in range(LAYERS):
        cache.set_cross(layer, cross[layer, 0], cross[layer, 1], torch.tensor(lists.cross_lengths))
    return cache, lists


def step(cache: KVCache, lists: Lists, new: int, kept: list[int] | None = None) -> None:
    """Append `new` positions, compare what every row sees, and keep all of them or `kept` of each row."""
    entries = torch.randn(LAYERS, 2, cache.batch, HEADS, new, WIDTH)
    lengths = lists.lengths
    allowed: Tensor | None = None
    for layer in range(LAYERS):
        seen = cache.append(layer, entries[layer, 0], entries[layer, 1])
        width = max(lengths) + new
        table = cache.mask(new).materialize(new, width, torch.device("cpu"))
        allowed = torch.ones(1, 1, new, width).bool() if table is None else table
        allowed = allowed.expand(cache.batch, 1, new, width)
        for which, got in enumerate(seen):
            assert got.shape == (cache.batch, HEADS, width, WIDTH)
            for b, row in enumerate(lists.rows):
                expected = torch.cat([row[layer, which], entries[layer, which, b]], dim=1)
                assert torch.equal(got[b, :, : lengths[b] + new], expected)
                for i in range(new):  # the i-th new position sees its past and itself, and nothing else
                    assert allowed[b, 0, i].nonzero().flatten().tolist() == list(range(lengths[b] + i + 1))
    cache.advance(new if kept is None else torch.tensor(kept))
    for b in range(cache.batch):
        count = new if kept is None else kept[b]
        lists.rows[b] = torch.cat([lists.rows[b], entries[:, :, b, :, :count]], dim=3)


def compare(cache: KVCache, lists: Lists) -> None:
    assert cache.batch == len(lists.rows)
    assert cache.lengths.tolist() == lists.lengths
    assert cache.cross_mask().key_lengths is not None
    assert cache.cross_mask().key_lengths.tolist() == lists.cross_lengths  # type: ignore[union-attr]
    for layer in range(LAYERS):
        for which, got in enumerate(cache.cross(layer)):
            assert torch.equal(got, torch.stack([row[layer, which] for row in lists.cross]))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_random_operations_are_applied(seed: int, fused: bool) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    cache, lists = filled(random.randint(1, 4), fused=fused)
    for _ in range(12):
        match random.choice(["step", "step", "chunk", "uneven", "select"]):
            case "step":
                step(cache, lists, 1)
            case "chunk":
                step(cache, lists, random.randint(2, 3))
            case "uneven":
                step(cache, lists, 3, [random.randint(0, 3) for _ in range(cache.batch)])
            case "select":  # drops, reorders, repeats, and grows beyond the first batch
                rows = [random.randrange(cache.batch) for _ in range(random.randint(1, 6))]
                cache.select(torch.tensor(rows))
                lists.select(rows)
        compare(cache, lists)


def test_select_grows_within_the_capacity() -> None:
    cache, lists = filled(2, capacity=3)
    step(cache, lists, 2, [2, 1])
    cache.select(torch.tensor([0, 0, 0, 1, 1, 1]))
    lists.select([0, 0, 0, 1, 1, 1])
    step(cache, lists, 1)
    compare(cache, lists)
    assert cache.capacity == 3


def test_beams_share_cross_entries() -> None:
    cache, lists = filled(2)
    cache.select(torch.tensor([0, 0, 1, 1]))
    lists.select([0, 0, 1, 1])
    step(cache, lists, 1)
    before = cache.cross(0)[0].data_ptr()
    cache.select(torch.tensor([1, 0, 2, 2]))
    lists.select([1, 0, 2, 2])
    assert cache.cross(0)[0].data_ptr() == before
    compare(cache, lists)
    cache.select(torch.tensor([2, 3, 0, 1]))
    lists.select([2, 3, 0, 1])
    compare(cache, lists)


def test_capacity_is_checked() -> None:
    cache, lists = filled(2, capacity=4)
    step(cache, lists, 3)
    key = torch.zeros(2, HEADS, 2, WIDTH)
    with pytest.raises(ValueError, match="has 4 positions, but 5 are needed"):
        cache.append(0, key, key)
    step(cache, lists, 1)


@pytest.mark.parametrize("rows", [[0, 1], [1, 1, 0]])
def test_the_number_of_keys_is_known_before_they_are_appended(rows: list[int]) -> None:
    cache, lists = filled(2)
    step(cache, lists, 2, [2, 1])
    cache.select(torch.tensor(rows))
    key = torch.zeros(len(rows), HEADS, 3, WIDTH)
    assert cache.keys(3) == cache.append(0, key, key)[0].shape[2]


def test_a_table_without_rows_is_refused() -> None:
    cache, _ = filled(2)
    cache.select(torch.tensor([], dtype=torch.long))
    assert cache.batch == 0


@pytest.mark.parametrize("rows", [[2], [0, 3], [3, 1, 0, 2]])
def test_rows_of_another_cache_replace_some(rows: list[int]) -> None:
    torch.manual_seed(0)
    cache, lists = filled(6)
    step(cache, lists, 7)
    cache.select(torch.tensor([5, 1, 2, 3]))
    lists.select([5, 1, 2, 3])
    fresh, others = filled(len(rows))
    step(fresh, others, 5, [1 + i for i in range(len(rows))])
    cache.replace(torch.tensor(rows), fresh)
    for at, row in zip(rows, others.rows, strict=True):
        lists.rows[at] = row
    compare(cache, lists)
    step(cache, lists, 1)
    step(cache, lists, 2)
    compare(cache, lists)


def test_the_offset_of_a_single_query_needs_no_synchronization() -> None:
    cache, lists = filled(2)
    step(cache, lists, 3)
    assert (cache.offset, cache.mask(1).offset) == (3, 3)
    step(cache, lists, 3, [1, 2])
    assert isinstance(cache.offset, torch.Tensor)
    assert cache.offset.tolist() == [4, 5]
