"""Local attention, explicit and fused."""

import pytest
import torch
from torch import Tensor

from manyheads.core.recording import record
from manyheads.models.local_attention import (
    LocalAttention,
)  # fmt: skip
from tests.unit.models.test_local_attention import relative


def test_explicit_and_fused_agree_with_maps_over_neighbors() -> None:
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
    assert not map[:, :, 3, 63].any()  # this position lies outside the image


def by_hand(layer: LocalAttention, x: Tensor) -> Tensor:
    """Compute equation 3 pixel by pixel and head by head, without positions outside the image."""
    pixels = x.permute(0, 2, 3, 1)
    query, key, value = (
        each(pixels).unflatten(-1, (layer.heads, -1)) for each in (layer.query, layer.key, layer.value)
    )
    batch, height, width = pixels.shape[:3]
    y = torch.zeros_like(query)
    for b in range(batch):
        for h in range(layer.heads):
            for i in range(height):
                for j in range(width):
                    near = [
                        (a, c)
                        for a in range(max(0, i - layer.reach), min(height, i + layer.reach + 1))
                        for c in range(max(0, j - layer.reach), min(width, j + layer.reach + 1))
                    ]
                    q = query[b, i, j, h]
                    scores = torch.stack(
                        [q @ (key[b, a, c, h] + relative(layer.relative, h, a - i, c - j)) for a, c in near]
                    )
                    values = torch.stack([value[b, a, c, h] for a, c in near])
                    y[b, i, j, h] = scores.softmax(0) @ values
    return y.flatten(3).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("size", "window"), [((5, 4), 3), ((3, 7), 5), ((1, 1), 7), ((6, 6), 7)])
@pytest.mark.parametrize("query_block", [1, 2, 4])
def test_the_loss_equals_a_naive_loop(size: tuple[int, int], window: int, query_block: int) -> None:
    torch.manual_seed(1)
    layer = LocalAttention(3, 8, 2, window, query_block=query_block).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    expected = by_hand(layer, x)
    assert torch.allclose(layer(x), expected, atol=1e-12)
    halved = LocalAttention(3, 8, 2, window, stride=2, query_block=query_block).double()
    halved.load_state_dict(layer.state_dict())
    pooled = torch.stack([
        torch.stack([expected[..., i : i + 2, j : j + 2].mean((2, 3)) for j in range(0, size[1], 2)], -1)
        for i in range(0, size[0], 2)
    ], -2)  # fmt: skip
    assert torch.allclose(halved(x), pooled, atol=1e-12)
