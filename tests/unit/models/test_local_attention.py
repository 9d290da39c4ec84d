"""Local attention, compared with a loop over pixels and with attention to the whole image."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import attend
from manyheads.core.recording import tapped
from manyheads.models.local_attention import (
    AttentionStem,
    LocalAttention,
    LocalAttentionConfig,
    LocalAttentionNet,
    RelativePositions,
)  # fmt: skip
from manyheads.models.presets import preset

TINY = {"depths": (1, 2), "widths": (32, 48), "stem_width": 8, "heads": 2, "window": 3, "image_size": 16,
        "labels": ("a", "b", "c")}  # fmt: skip


def relative(positions: RelativePositions, head: int, down: int, right: int) -> Tensor:
    """r of the paper: the row's embedding, then the column's."""
    at = (positions.rows[head, down + positions.reach], positions.columns[head, right + positions.reach])
    return torch.cat(at)


def test_a_window_over_the_whole_image_equals_global_attention() -> None:
    torch.manual_seed(1)
    layer = LocalAttention(6, 8, 2, window=13).double()
    x = torch.randn(2, 6, 5, 7, dtype=torch.float64)
    places = torch.cartesian_prod(torch.arange(5), torch.arange(7))
    bias_table = torch.stack([
        torch.stack([
            torch.stack([relative(layer.relative, h, *(key - query).tolist()) for key in places]) for query in places
        ])
        for h in range(2)
    ])  # (H, T, T, Dh)  # fmt: skip
    tokens = x.flatten(2).transpose(1, 2)
    q, k, v = (each(tokens).unflatten(-1, (2, -1)).transpose(1, 2) for each in (layer.query, layer.key, layer.value))
    bias = torch.einsum("bhqd,hqkd->bhqk", q, bias_table)
    expected = attend(q, k, v, bias=bias, scale=1.0, explicit=True).transpose(2, 3).flatten(1, 2).view(2, 8, 5, 7)
    found = layer(x)
    assert torch.allclose(found, expected, atol=1e-12)
    direction = torch.randn_like(found)
    mine, theirs = (
        torch.autograd.grad((each * direction).sum(), list(layer.parameters()), retain_graph=True)
        for each in (found, expected)
    )
    assert all(torch.allclose(a, b, atol=1e-11) for a, b in zip(mine, theirs, strict=True))


def test_evaluation_before_training_keeps_gradients() -> None:
    layer = LocalAttention(4, 8, 2, 5)
    x = torch.randn(1, 4, 11, 13)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.query.weight.grad is not None


def test_the_stem_attends_to_its_block_with_positional_values() -> None:
    torch.manual_seed(1)
    stem = AttentionStem(3, 8, heads=2, window=2, mixtures=3).double().eval()
    images = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    pixels = images.permute(0, 2, 3, 1)
    query, key = (each(pixels).unflatten(-1, (2, -1)) for each in (stem.query, stem.key))
    attended = torch.zeros(2, 8, 4, 5, dtype=torch.float64)
    for b in range(2):
        for i in range(4):
            for j in range(5):
                block = [
                    (a, c) for a in range(i // 2 * 2, i // 2 * 2 + 2) for c in range(j // 2 * 2, min(j // 2 * 2 + 2, 5))
                ]
                values = []
                for a, c in block:
                    p = ((stem.rows[a % 2] + stem.columns[c % 2]) @ stem.mixtures.T).softmax(0)
                    values.append(torch.stack([p[m] * stem.values[m] for m in range(3)]).sum(0) @ pixels[b, a, c])
                for h in range(2):
                    scores = [
                        query[b, i, j, h] @ (key[b, a, c, h] + relative(stem.relative, h, a - i, c - j))
                        for a, c in block
                    ]
                    mix = torch.stack(scores).softmax(0) @ torch.stack(values)[:, 4 * h : 4 * h + 4]
                    attended[b, 4 * h : 4 * h + 4, i, j] = mix
    expected = F.max_pool2d(stem.norm(attended).relu(), 2, ceil_mode=True)
    assert stem(images).shape == (2, 8, 2, 3)
    assert torch.allclose(stem(images), expected, atol=1e-12)


@pytest.mark.parametrize(("name", "millions"), [("26", 10.3), ("38", 14.1), ("50", 18.0), ("26-stem", 10.3)])
def test_preset_counts_match_the_paper(name: str, millions: float) -> None:
    with torch.device("meta"):
        small, large = (LocalAttentionNet(preset(f"local-attention/{name}", window=window)) for window in (7, 11))
    count, more = (sum(p.numel() for p in model.parameters()) for model in (small, large))
    assert abs(count / 1e6 - millions) < 0.1
    embeddings = sum(p.numel() for n, p in small.stages.named_parameters() if n.endswith(("rows", "columns")))
    assert more - count == embeddings * 4 // 7  # of 7 shifts, 4 more


def test_attention_is_placed_by_the_configuration() -> None:
    whole = LocalAttentionNet(LocalAttentionConfig(**TINY))  # type: ignore[arg-type]
    assert len(tapped(whole)) == 1 + 3
    late = LocalAttentionNet(LocalAttentionConfig(**TINY, attends=(2,), front="convolution"))  # type: ignore[arg-type]
    assert list(tapped(late)) == ["stages.1.blocks.0.layers.1.mixer", "stages.1.blocks.1.layers.1.mixer"]
    kernels = [m.kernel_size for m in late.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    assert kernels == [(7, 7), (3, 3)]
    kernels = [m.kernel_size for m in whole.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    assert kernels == []


@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_all_parameters_train_for_any_query_block(block: str) -> None:
    torch.manual_seed(1)
    config = {**TINY, "block": block}
    model = LocalAttentionNet(LocalAttentionConfig(**config))  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    images = torch.randn(3, 3, 17, 22)
    logits = model(images)
    logits.square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
    other = LocalAttentionNet(LocalAttentionConfig(**config, query_block=1))  # type: ignore[arg-type]
    other.load_state_dict(model.state_dict())
    assert torch.allclose(other(images), logits, atol=1e-4)


def test_impossible_values_are_reported() -> None:
    with pytest.raises(ValueError, match="width 12 is not divisible by 2 x 4 heads"):
        LocalAttention(3, 12, 4)
    with pytest.raises(ValueError, match="window is 4: expected an odd number"):
        LocalAttention(3, 16, 4, 4)
    with pytest.raises(ValueError, match=r"attends is \(3, 4\): expected stages from 1 to 2"):
        LocalAttentionConfig(**TINY, attends=(3, 4))  # type: ignore[arg-type]
    narrow = {**TINY, "stem_width": 6}
    with pytest.raises(ValueError, match="width 6 is not divisible .*in a network, this width is stem_w"):
        LocalAttentionNet(LocalAttentionConfig(**narrow))  # type: ignore[arg-type]
    LocalAttentionNet(LocalAttentionConfig(**narrow, front="convolution"))  # type: ignore[arg-type]
