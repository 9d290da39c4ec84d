"""ViT and DeiT: published parameter counts, outputs of the heads, fine-tuning, and mismatched weights."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from manyheads.analysis.costs import example
from manyheads.models.adapt import adapt
from manyheads.models.presets import PRESETS, preset
from manyheads.models.vit import ViT, ViTConfig

SMALL: dict[str, Any] = {"labels": ("a", "b", "c"), "image_size": 12, "patch": 4, "channels": 2, "width": 12,
                         "layers": 3, "heads": 3, "feed_forward": 20}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "class": {}, "mean": {"pool": "mean"}, "representation": {"representation": 7}, "distilled": {"distilled": True},
    "patches": {"pool": "patches"}, "both": {"pool": "class_patches"}, "normed mean": {
        "pool": "mean", "norm_after_pool": True},
    "clip": {"embedding_norm": True, "projection": 7, "activation": "quick_gelu", "registers": 2},
    "one head": {"distilled": True, "fused": "none"}, "no head": {"labels": ()},
}  # fmt: skip


def small(**settings: Any) -> ViT:
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**SMALL, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def images(batch: int = 3, size: int = 12) -> Tensor:
    return torch.randn(batch, 2, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("vit/ti16", {}, 5_717_416),
        ("vit/s16", {}, 22_050_664),
        ("vit/b16", {}, 86_567_656),
        ("vit/l16", {}, 304_326_632),
        ("vit/b32", {}, 88_224_232),
        ("vit/h14", {}, 630_764_800),
        ("vit/h14", {"labels": tuple(map(str, range(1000)))}, 632_045_800),
        ("vit/b16", {"image_size": 384}, 86_859_496),
        ("vit/b16", {"labels": ()}, 85_798_656),
        ("vit/b16", {"labels": (), "representation": 768}, 86_389_248),
        ("deit/ti16", {}, 5_910_800),
        ("deit/s16", {}, 22_436_432),
        ("deit/b16", {}, 87_338_192),
        ("deit/b16", {"image_size": 384}, 87_630_032),
        ("vit/ti4-32", {}, 5_362_762),
        ("vit/ti4-32", {"distilled": True}, 5_365_076),
        ("vit/s4-32", {}, 21_342_346),
        ("vit/b4-32", {}, 85_152_010),
    ],
)
def test_published_counts(name: str, settings: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        model = ViT(preset(name, **settings))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith(("-32", "-28", "-8"))])
def test_small_images_are_accepted(name: str) -> None:
    config = preset(name, layers=1)
    model = ViT(config).eval()
    assert model(*example(model)).shape == (1, 10)
    assert config.grid == (config.image_size // config.patch,) * 2


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_gradients_and_rows_are_independent(kind: str) -> None:
    model = small(**KINDS[kind]).double()
    x = images().double()
    out = model(x)
    width = {"representation": 7, "clip": 7, "both": 24}.get(kind, 12)
    assert out.shape == ((3, width) if kind == "no head" else (3, 3))
    assert model.features(x).shape == (3, width)
    torch.testing.assert_close(torch.cat([model(row[None]) for row in x]), out, rtol=0, atol=1e-12)
    norm = model.encoder.norm or torch.nn.Identity()
    assert torch.equal(norm(model.all_states(x)[-1]), model.encode(x))
    assert len(model.all_states(x)) == 4
    given = model.train()(x)
    parts = given if isinstance(given, tuple) else (given,)
    assert len(parts) == (2 if kind == "distilled" else 1)
    sum(part.square().sum() for part in parts).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_mean_covers_the_patches() -> None:
    model = small(pool="mean")
    assert model.encode(images()).shape == (3, 9, 12)
    torch.testing.assert_close(model.features(images()), model.encode(images()).mean(1))
    assert small().encode(images()).shape == (3, 10, 12)


@pytest.mark.parametrize("fused", ["softmax", "logits"])
def test_both_heads_form_the_prediction(fused: str) -> None:
    model = small(distilled=True, fused=fused)
    by_class, by_distillation = model.train()(images())
    together = model.eval()(images())
    if fused == "softmax":
        expected = (by_class.softmax(-1) + by_distillation.softmax(-1)) / 2
        torch.testing.assert_close(together.exp(), expected)
    else:
        torch.testing.assert_close(together, (by_class + by_distillation) / 2)
    assert not torch.allclose(by_class, by_distillation)


def test_the_two_predictions_differ() -> None:
    """Two heads of which one is very sure and the other is not: the sums of softmaxes and of logits disagree."""
    model = small(distilled=True)
    by_class, by_distillation = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, 4.0, -20.0]])
    assert model.fuse(by_class, by_distillation).argmax() == 0
    by_class = torch.tensor([[0.0, -9.0, 0.3]])
    assert model.fuse(by_class, by_distillation).argmax() == 1
    model = small(distilled=True, fused="logits")
    assert model.fuse(by_class, by_distillation).argmax() == 0


def test_patches_come_row_by_row() -> None:
    """A change of one pixel changes the embedding of its patch alone."""
    model = small()
    changed = images(1)
    changed[0, 1, 5, 11] += 1.0  # row 1, column 2 of the grid of 3 x 3
    moved = (model.embed(changed) != model.embed(images(1))).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == [1 + 1 * 3 + 2]


@pytest.mark.parametrize(
    ("init", "deviation"), [("truncated_normal", 0.88 * 0.02), ("xavier", math.sqrt(2 / (64 + 256)))]
)
def test_weights_are_initialized_as_documented(init: str, deviation: float) -> None:
    """A normal cut at two deviations keeps 0.88 of its deviation; Glorot's is sqrt(2 / (in + out))."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(width=64, layers=1, heads=4, feed_forward=256, init=init, position_std=0.3))  # type: ignore[arg-type]
    feed_forward = model.encoder.blocks[0].get_submodule("feed_forward")
    assert float(feed_forward.get_parameter("expand.weight").detach().std()) == pytest.approx(deviation, rel=0.05)
    assert float(model.positions.table.detach().std()) == pytest.approx(0.88 * 0.3, rel=0.05)
    assert not feed_forward.get_parameter("expand.bias").any()


def test_stochastic_depth_grows_with_the_layer_and_is_off_in_evaluation() -> None:
    model = small(stochastic_depth=0.4)
    rates = [block.drop_path for block in model.encoder.blocks]
    assert rates == pytest.approx([0.0, 0.2, 0.4])
    assert torch.equal(model(images()), small()(images()))
    torch.manual_seed(0)
    assert not torch.equal(model.train()(images()), model(images()))


@pytest.mark.parametrize("distilled", [False, True])
def test_adapting_to_a_higher_resolution(distilled: bool) -> None:
    model = small(distilled=distilled)
    larger, new = adapt(model, image_size=20)
    assert new == []
    tokens = 1 + distilled
    old, table = model.positions.table, larger.positions.table
    assert table.shape == (tokens + 25, 12)
    assert torch.equal(table[:tokens], old[:tokens])
    others = {name: p for name, p in larger.named_parameters() if name != "positions.table"}
    assert all(torch.equal(p, model.get_parameter(name)) for name, p in others.items())
    assert larger(images(size=20)).shape == (3, 3)
    assert not larger.training


def test_adapting_to_other_labels() -> None:
    model = small(distilled=True)
    other, new = adapt(model, labels=("cat", "dog"), stochastic_depth=0.1)
    assert new == ["head.weight", "head.bias", "distillation_head.weight", "distillation_head.bias"]
    assert not any(other.get_parameter(name).any() for name in new)  # as ViT begins to fine-tune
    torch.testing.assert_close(other(images()), torch.full((3, 2), math.log(0.5)))
    assert torch.equal(other.features(images()), model.features(images()))
    same, new = adapt(model, dropout=0.5)
    assert new == []
    assert torch.equal(same(images()), model(images()))
    without, new = adapt(small(representation=7), labels=("x",), representation=None)  # ViT drops it to fine-tune
    assert new == ["head.weight", "head.bias"]
    assert without.representation is None


def test_adapting_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"feed_forward would change the shapes of encoder\.blocks\.0"):
        adapt(small(), feed_forward=24)
    with pytest.raises(ValueError, match=r"distilled would change the shapes of positions\.table"):
        adapt(small(), distilled=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"image_size": 30, "patch": 4},
            "30 pixels are not divisible by the patch size 4: the nearest valid sizes are 28 and 32",
        ),
        (
            {"image_size": 3, "patch": 4},
            "3 pixels are not divisible by the patch size 4: the nearest valid sizes are 4$",
        ),
        ({"width": 10}, r"heads is 3: expected an integer that divides width \(10\)"),
        ({"distilled": True, "pool": "mean"}, "expected pool 'class', found 'mean'"),
        ({"stochastic_depth": 1.0}, "from 0 to below 1"),
        ({"position_std": 0.0}, "position_std is 0.0: expected a number above 0"),
        ({"pool": "max"}, "pool is 'max': expected one of class, mean"),
        ({"norm_after_pool": True, "distilled": True}, "a distillation token needs normalized states"),
        ({"projection": 3, "representation": 4}, "expected a projection or a representation, found both"),
    ],
)
def test_mismatches_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViTConfig(**{**SMALL, **settings})


def test_mismatched_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the images are 16 x 12 pixels, but the model expects 12 x 12"):
        small()(torch.zeros(1, 2, 16, 12))
    with pytest.raises(ValueError, match=r"expected images of shape \(B, 2, Y, X\), found \(1, 3, 12, 12\)"):
        small()(torch.zeros(1, 3, 12, 12))
    with pytest.raises(ValueError, match=r"unknown preset 'vit/xl': did you mean vit/"):
        preset("vit/xl")
