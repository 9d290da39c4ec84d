"""Local attention, explicit and fused."""

import torch

from manyheads.core.tap import record
from manyheads.models.local_attention import (
    LocalAttention,
)  # fmt: skip
from tests.unit.models.test_local_attention import by_hand


def test_explicit_and_fused_agree_and_the_maps_are_rows_of_neighbours() -> None:
    torch.manual_seed(1)
    layer = LocalAttention(4, 8, 2, 7, query_block=8)
    x = torch.randn(2, 4, 9, 10, requires_grad=True)
    fused = layer(x)  # 64 x 196 entries a block: beyond a small map
    with record(layer) as maps:
        assert torch.equal(layer(x), fused)
    (map,) = maps[""]
    assert map.shape == (2, 2, 4, 64, 196)
    assert torch.allclose(fused, by_hand(layer, x), atol=1e-5)
    inside = map.unflatten(3, (8, 8))[:, :, 0]  # the first block, whole in the image
    assert torch.allclose(inside.sum(-1), torch.ones(()), atol=1e-5)
    assert torch.equal((inside > 0).sum(-1)[0, 0, 0, :5], torch.tensor([16, 20, 24, 28, 28]))  # (0, 0) sees 4 x 4
    assert not map[:, :, 3, 63].any()  # no pixel of the image stands there
