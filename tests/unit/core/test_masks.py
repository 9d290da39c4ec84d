"""Each mask rule, compared with a loop over queries and keys."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from manyheads.core.masks import Mask

B, H, TQ, TK = 3, 2, 4, 6
CPU = torch.device("cpu")
LENGTHS = torch.tensor([6, 2, 0])
OFFSETS = torch.tensor([0, 2, 5])
OF_QUERY = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2], [5, 5, 5, 5]])
OF_KEY = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 2, 2], [4, 4, 4, 5, 5, 5]])
DENSE = torch.rand(B, H, TQ, TK, generator=torch.Generator().manual_seed(0)) < 0.6

Rule = Callable[[int, int, int, int], bool | torch.Tensor]

RULES: dict[str, tuple[Mask, Rule]] = {
    "lengths": (Mask(key_lengths=LENGTHS), lambda b, h, q, k: k < LENGTHS[b]),
    "causal, lower right": (Mask(causal=True), lambda b, h, q, k: k <= q + TK - TQ),
    "causal, upper left": (Mask(causal=True, offset=0), lambda b, h, q, k: k <= q),
    "causal, an offset": (Mask(causal=True, offset=1), lambda b, h, q, k: k <= q + 1),
    "causal, row offsets": (Mask(causal=True, offset=OFFSETS), lambda b, h, q, k: k <= q + OFFSETS[b]),
    "window": (Mask(window=1), lambda b, h, q, k: abs(q + TK - TQ - k) <= 1),
    "window, row offsets": (Mask(window=0, offset=OFFSETS), lambda b, h, q, k: q + OFFSETS[b] == k),
    "causal window": (Mask(causal=True, window=2, offset=0), lambda b, h, q, k: 0 <= q - k <= 2),
    "segments": (Mask(segments=(OF_QUERY, OF_KEY)), lambda b, h, q, k: OF_QUERY[b, q] == OF_KEY[b, k]),
    "dense": (Mask(dense=DENSE), lambda b, h, q, k: bool(DENSE[b, h, q, k])),
}


def spelled_out(mask: Mask) -> Tensor:
    table = mask.materialize(TQ, TK, CPU)
    assert table is not None
    assert table.dtype == torch.bool
    assert table.shape[-2:] == (TQ, TK)
    return table.expand(B, H, TQ, TK)


def by_loop(rule: Rule) -> Tensor:
    table = torch.empty(B, H, TQ, TK, dtype=torch.bool)
    for at in itertools.product(range(B), range(H), range(TQ), range(TK)):
        table[at] = bool(rule(*at))
    return table


@pytest.mark.parametrize("name", RULES)
def test_masks_equal_a_loop(name: str) -> None:
    mask, rule = RULES[name]
    assert torch.equal(spelled_out(mask), by_loop(rule))


@pytest.mark.parametrize(
    ("one", "other"),
    [("lengths", "causal, lower right"), ("causal, row offsets", "lengths"), ("segments", "dense"),
     ("causal window", "segments"), ("lengths", "window")],
)  # fmt: skip
def test_masks_combine_with_and(one: str, other: str) -> None:
    (first, first_rule), (second, second_rule) = RULES[one], RULES[other]
    expected = by_loop(first_rule) & by_loop(second_rule)
    assert not torch.equal(expected, by_loop(first_rule))
    assert torch.equal(spelled_out(first & second), expected)
    assert torch.equal(spelled_out(second & first), expected)


def test_conflicting_masks_are_refused() -> None:
    with pytest.raises(ValueError, match="key_lengths"):
        Mask(key_lengths=LENGTHS) & Mask(key_lengths=LENGTHS.clone())
    # an offset that only one of them states would silently move the other's diagonal
    with pytest.raises(ValueError, match="offset"):
        Mask(causal=True) & Mask(window=2, offset=0)
    same = Mask(key_lengths=LENGTHS)
    assert torch.equal(spelled_out(same & same), spelled_out(same))
    wide = [Mask(window=int("1000")) for _ in range(2)]  # equal, and not one object
    assert (wide[0] & wide[1]).window == 1000


def test_a_mask_without_rules_has_no_table() -> None:
    assert Mask().materialize(TQ, TK, CPU) is None
    assert (Mask() & Mask()).materialize(TQ, TK, CPU) is None


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "expected"),
    [
        (Mask(causal=True), 4, 4, True),
        (Mask(causal=True, offset=0), 4, 4, True),
        (Mask(causal=True), 2, 4, False),  # fused kernels would align the first query with the first key
        (Mask(causal=True, offset=0), 2, 4, False),
        (Mask(causal=True, offset=1), 4, 4, False),
        (Mask(causal=True, offset=torch.zeros(3, dtype=torch.long)), 4, 4, False),
        (Mask(causal=True, key_lengths=LENGTHS), 4, 4, False),
        (Mask(causal=True, window=2), 4, 4, False),
        (Mask(), 4, 4, False),
    ],
)
def test_is_plain_causal_requires_a_square_triangle(mask: Mask, queries: int, keys: int, expected: bool) -> None:
    assert mask.is_plain_causal(queries, keys) is expected
    if expected:
        table = mask.materialize(queries, keys, CPU)
        assert table is not None
        assert torch.equal(table[0, 0], torch.ones(queries, keys).tril().bool())


def test_layers_share_one_position_table() -> None:
    mask = Mask(causal=True, key_lengths=LENGTHS)
    assert mask.materialize(TQ, TK, CPU) is mask.materialize(TQ, TK, CPU)
    other = mask.materialize(TK, TK, CPU)
    assert other is not None
    assert other.shape[-2:] == (TK, TK)


def test_errors_are_reported() -> None:
    with pytest.raises(ValueError, match="boolean"):
        Mask(dense=torch.zeros(2, 2))
    with pytest.raises(ValueError, match="-1"):
        Mask(window=-1)
