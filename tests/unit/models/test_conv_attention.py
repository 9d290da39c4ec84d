"""Attention as convolution, compared with PyTorch's convolutions, brute force and the published sizes."""

from dataclasses import replace
from math import exp, sqrt
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.core.editing import edit
from manyheads.core.recording import record
from manyheads.models.conv_attention import ConvAttention, Kind, QuadraticAttention, attention_of, shifts
from manyheads.models.presets import preset

KINDS = get_args(Kind)
POSITIONAL = ("quadratic", "relative")


def small(kind: str, **settings: Any) -> ConvAttention:
    sizes = {
        "width": 6, "layers": 2, "heads": 3, "feed_forward": 5, "image_size": 8, "labels": ("a", "b", "c"),
        "dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(1)
    return ConvAttention(preset(f"conv-attention/{kind}", **{**sizes, **settings})).double()


def images(count: int = 2, size: int = 8, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def convolved(x: Tensor, weight: Tensor, *arguments: Any, **settings: Any) -> Tensor:
    """x (B, C, Y, X) through the attention that is that convolution."""
    with torch.no_grad():
        return attention_of(weight, *arguments, **settings)(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("kernel", "settings"),
    [((1, 1), {}), ((3, 3), {}), ((5, 5), {}), ((3, 5), {}), ((2, 4), {}), ((3, 3), {"dilation": 2}),
     ((3, 3), {"groups": 2}), ((2, 4), {"groups": 2, "dilation": 3})],
)  # fmt: skip
def test_theorem_attention_equals_a_convolution_inside_the_image(
    kernel: tuple[int, int], settings: dict[str, int]
) -> None:
    torch.manual_seed(1)
    weight = torch.randn(6, 4 // settings.get("groups", 1), *kernel, dtype=torch.float64)
    bias = torch.randn(6, dtype=torch.float64)
    x = images(2, 12, 4)
    found = convolved(x, weight, bias, **settings)
    reach = [settings.get("dilation", 1) * (k - 1) for k in kernel]
    top, left = reach[0] // 2, reach[1] // 2
    around = (left, reach[1] - left, top, reach[0] - top)

    inside = F.conv2d(x, weight, bias, **settings)
    rows, columns = slice(top, top + inside.shape[2]), slice(left, left + inside.shape[3])
    torch.testing.assert_close(found[:, :, rows, columns], inside, atol=1e-12, rtol=0)
    copied = F.conv2d(F.pad(x, around, mode="replicate"), weight, bias, **settings)
    torch.testing.assert_close(found, copied, atol=1e-12, rtol=0)
    zeros = F.conv2d(x, weight, bias, padding="same", **settings)
    if kernel != (1, 1):
        assert (found - zeros).abs().max() > 0.1, "at the borders it is not the convolution with zeros"
    wide = convolved(F.pad(x, around), weight, bias, **settings)
    cut = wide[:, :, top : top + 12, left : left + 12]
    torch.testing.assert_close(cut, zeros, atol=1e-12, rtol=0)


def test_theorem_attention_equals_a_strided_convolution() -> None:
    torch.manual_seed(1)
    weight, x = torch.randn(2, 3, 3, 3, dtype=torch.float64), images()
    found = convolved(F.pad(x, (1, 1, 1, 1)), weight)[:, :, 1:-1:2, 1:-1:2]
    torch.testing.assert_close(found, F.conv2d(x, weight, stride=2, padding=1), atol=1e-12, rtol=0)


def test_the_error_decreases_like_a_neighbors_weight_down_to_rounding() -> None:
    torch.manual_seed(1)
    weight, x = torch.randn(4, 3, 3, 3, dtype=torch.float64) / sqrt(27), images(4, 10)
    errors = {}
    for alpha in (2.0, 5.0, 10.0, 20.0, 46.0):
        found = convolved(x, weight, alpha=alpha)[:, :, 1:-1, 1:-1]
        errors[alpha] = float((found - F.conv2d(x, weight)).abs().max())
    assert errors[46.0] < 1e-14
    for alpha in (5.0, 10.0, 20.0):
        assert exp(-alpha) < errors[alpha] < 50 * exp(-alpha)
    assert sorted(errors.values(), reverse=True) == list(errors.values())


def test_convolution_attention_is_deterministic() -> None:
    weight = torch.arange(2 * 3 * 9, dtype=torch.float32).view(2, 3, 3, 3)
    state = torch.random.get_rng_state()
    attention = attention_of(weight, torch.tensor([1.0, 2.0]), alpha=8.0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert attention.heads == 9
    assert attention.centers.tolist() == [[y, x] for y in (-1, 0, 1) for x in (-1, 0, 1)]
    assert attention.sharpness.tolist() == [4.0] * 9
    assert {p.dtype for p in attention.parameters()} == {torch.float32}
    assert torch.equal(attention.output.weight.view(2, 9, 3)[:, 5], weight[:, :, 1, 2])
    assert attention.output.bias.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="3 outputs: expected a multiple of 2 groups"):
        attention_of(torch.zeros(3, 1, 3, 3), groups=2)
    with pytest.raises(
        ValueError, match=r"expected a Conv2d weight of shape \(O, I / groups, Ky, Kx\), found \(3, 1, 3\)"
    ):
        attention_of(torch.zeros(3, 1, 3))
    with pytest.raises(ValueError, match="alpha is -1"):
        attention_of(weight, alpha=-1.0)


@pytest.mark.parametrize(
    ("kind", "millions", "exact"),
    [("quadratic", 12.1, 12_086_844), ("relative", 12.3, 12_278_682), ("content", 29.5, 29_484_282)],
)
def test_parameter_counts_match_the_paper(kind: str, millions: float, exact: int) -> None:
    """Table 1 of the paper gives 12.1, 12.3 and 29.5 million for CIFAR-10."""
    with torch.device("meta"):
        model = ConvAttention(preset(f"conv-attention/{kind}", labels=tuple("abcdefghij")))
        assert ConvAttention(preset(f"conv-attention/{kind}")).classifier.out_features == 1000  # type: ignore[union-attr]
    count = sum(p.numel() for p in model.parameters())
    assert count == exact
    assert round(count / 1e6, 1) == millions


def weights_by_hand(model: ConvAttention, x: Tensor) -> Tensor:
    """The first layer's maps of x (B, Y, X, D) by the paper's formulas, one score at a time: (B, H, T, T)."""
    p = dict(model.layers[0].attention.named_parameters())  # type: ignore[union-attr]
    batch, rows, columns, width = x.shape
    heads, size = model.config.heads, model.config.image_size // model.config.downsample
    places = [(y, x) for y in range(rows) for x in range(columns)]
    found = torch.zeros(batch, heads, len(places), len(places), dtype=x.dtype)
    for b in range(batch):
        for h in range(heads):
            for i, at in enumerate(places):
                for j, to in enumerate(places):
                    dy, dx = to[0] - at[0], to[1] - at[1]
                    if model.config.kind == "quadratic":
                        cy, cx = p["centers"][h]
                        score = -(p["sharpness"][h] ** 2) / 2 * ((dy - cy) ** 2 + (dx - cx) ** 2)
                    else:
                        row, column = p["rows.weight"][dy + size - 1], p["columns.weight"][dx + size - 1]
                        if model.config.kind == "relative":
                            score = p["row_scores.weight"][h] @ row + p["column_scores.weight"][h] @ column
                        else:
                            own = slice(h * width, (h + 1) * width)
                            query = p["query.weight"][own] @ x[b][at] + p["query.bias"][own]
                            key = p["key.weight"][own] @ x[b][to] + p["key.bias"][own]
                            score = query @ (key + torch.cat([row, column])) / sqrt(width)
                    found[b, h, i, j] = score
    exponentials = (found - found.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_and_outputs_equal_the_formulas(kind: str) -> None:
    model = small(kind, layers=1)
    x = torch.randn(2, 4, 3, 6, dtype=torch.float64)  # fewer columns than rows, and than the encodings reach
    attention = model.layers[0].attention
    assert not isinstance(attention, Tensor)
    with torch.no_grad(), record(model) as maps:
        output = attention(x)
    by_hand = weights_by_hand(model, x).detach()
    (seen,) = maps["layers.0.attention"]
    assert seen.shape[0] == (1 if kind in POSITIONAL else 2)
    torch.testing.assert_close(seen.expand_as(by_hand), by_hand)
    p = dict(attention.named_parameters())
    mixed = torch.einsum("bhqk,bkd->bqhd", by_hand, x.flatten(1, 2)).flatten(2)
    expected = mixed @ p["output.weight"].T + p["output.bias"]
    torch.testing.assert_close(output.flatten(1, 2), expected.detach())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_recorded_maps_sum_to_one(kind: str, training: bool) -> None:
    model = small(kind).train(training)
    with torch.no_grad():
        plain = model(images())
        with record(model) as maps:
            assert torch.equal(model(images()), plain)
        assert list(maps) == ["layers.0.attention", "layers.1.attention"]
        for (seen,) in maps.values():
            assert seen.shape[1:] == (3, 16, 16)
            torch.testing.assert_close(seen.sum(-1), torch.ones_like(seen[..., 0]))
        with edit(model) as change:
            change.zero(None)
            blind = model(images())
        assert not torch.allclose(blind, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_its_images_and_trains_every_parameter(kind: str) -> None:
    model = small(kind, downsample=1)
    together = model(images(3))  # 64 tokens, with the fused kernel if the attention has keys
    alone = torch.cat([model(image[None]) for image in images(3)])
    torch.testing.assert_close(together, alone)
    torch.nn.functional.cross_entropy(together, torch.tensor([0, 1, 2])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        norm = float(parameter.grad.norm())
        if name.endswith("key.bias"):  # adds the same to every score of a query
            assert norm < 1e-12
        else:
            assert norm > 1e-9, name


def test_gradients_equal_finite_differences() -> None:
    model = small("quadratic", layers=1)
    x = images(1)
    attention = model.layers[0].attention
    assert isinstance(attention, QuadraticAttention)
    for parameter in (attention.centers, attention.sharpness):
        model.zero_grad()
        model(x).square().sum().backward()
        at, step = (0,) * parameter.dim(), 1e-6
        with torch.no_grad():
            parameter[at] += step
            above = model(x).square().sum()
            parameter[at] -= 2 * step
            below = model(x).square().sum()
            parameter[at] += step
        assert parameter.grad is not None
        assert float(parameter.grad[at]) == pytest.approx(float((above - below) / (2 * step)), rel=1e-5)


@pytest.mark.parametrize("kind", POSITIONAL)
def test_positional_maps_are_exact_in_lower_precision(kind: str) -> None:
    model = small(kind).float()
    plain, lower = ([], [])  # type: ignore[var-annotated]
    for found, enabled in ((plain, False), (lower, True)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled), record(model) as maps:
            assert model(images().float()).isfinite().all()
        found += [calls[0] for calls in maps.values()]
    assert all(map(torch.equal, plain, lower))


def test_dropout_acts_in_training_only() -> None:
    model = small("content", attention_dropout=0.5)
    model.eval()
    assert torch.equal(model(images()), model(images()))
    model.train()
    assert not torch.equal(model(images()), model(images()))


def test_features_sizes_and_mismatches() -> None:
    model = small("quadratic")
    torch.testing.assert_close(model.classifier(model.features(images())), model(images()))  # type: ignore[misc]
    bare = ConvAttention(replace(model.config, labels=())).double()
    assert bare(images()).shape == (2, 6)
    assert model(images(size=12)).shape == (2, 3), "a quadratic encoding reaches as far as the image does"
    for kind in ("relative", "content"):
        assert small(kind)(images(size=6)).shape == (2, 3)
        with pytest.raises(ValueError, match="12 x 12, but the model accepts at most 8 x 8"):
            small(kind)(images(size=12))
    with pytest.raises(
        ValueError, match="7 pixels are not divisible by the patch size 2: the nearest valid sizes are 6 and 8"
    ):
        model(images(size=7))
    with pytest.raises(ValueError, match="1 channels, but the model expects 3"):
        model(images(channels=1))
    for wrong, message in (
        ({"kind": "round"}, "kind is 'round'"),
        ({"image_size": 9}, "8 and 10"),
        ({"labels": ("a", "a")}, "expected a list of distinct names"),
        ({"kind": "content", "width": 5}, "expected an even number"),
        ({"downsample": 0}, "downsample is 0: expected an integer from 1"),
    ):
        with pytest.raises(ValueError, match=message):
            preset("conv-attention/quadratic", **wrong)
    with pytest.raises(ValueError, match="unknown preset"):
        preset("conv-attention/cubic")
    with pytest.raises(ValueError, match="unknown settings depth"):
        preset("conv-attention/quadratic", depth=3)


def test_shifts_point_from_query_to_key() -> None:
    found = shifts(2, 3)
    assert found.shape == (6, 6, 2)
    assert found[0, 5].tolist() == [1, 2]  # from the top left to the bottom right
    assert found[4, 2].tolist() == [-1, 1]


def test_a_head_learns_to_attend() -> None:
    """Trained on images shifted by (1, -2) with an identity value matrix, a head moves its center to this offset."""
    torch.manual_seed(1)
    attention = QuadraticAttention(4, 1).double()
    with torch.no_grad():
        attention.centers.zero_()
        attention.output.weight.copy_(torch.eye(4))
        attention.output.bias.zero_()
    x = images(4, 8, 4).permute(0, 2, 3, 1)
    optimizer = torch.optim.Adam([attention.centers, attention.sharpness], lr=0.1)
    for _ in range(120):
        optimizer.zero_grad()
        loss = (attention(x)[:, :-1, 2:] - x[:, 1:, :-2]).square().mean()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(attention.centers.detach(), torch.tensor([[1.0, -2.0]]).double(), atol=0.1, rtol=0)
    assert attention.sharpness.item() > 3, "and it narrows to the one pixel"
