"""Parity of ResNet with transformers and timm, and its directories: values, gradients, buffers."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from manyheads import directory
from manyheads.interop.resnet import RESNET, TIMM_RESNET
from manyheads.interop.table import slots
from manyheads.models.conv_attention import ConvAttention, ConvAttentionConfig
from manyheads.models.global_attention import GSANet, GSANetConfig
from manyheads.models.local_attention import LocalAttentionConfig, LocalAttentionNet
from manyheads.models.nonlocal_net import NonLocalConfig, NonLocalNet
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.selective_kernel import SKNet, SKNetConfig
from manyheads.models.split_attention import ResNeSt, ResNeStConfig
from tests.support.timm_stub import load_timm

SIZES: dict[str, Any] = {"depths": (2, 1, 1), "widths": (20, 28, 12), "stem_width": 11, "channels": 2, "image_size": 37,
                         "labels": ("cat", "crane", "crane")}  # fmt: skip
THEIRS: dict[str, Any] = {"depths": [1, 2], "hidden_sizes": [12, 36], "embedding_size": 7, "num_channels": 2,
                          "id2label": {0: "one", 1: "two", 2: "three"}}  # fmt: skip
KINDS: list[dict[str, Any]] = [{"block": "basic"}, {}, {"stride_in_1x1": True}, {"halve_first": True}, {"labels": ()}]


def noisy(model: Any) -> Any:
    """Move every parameter and running mean away from its initial value."""
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) * 0.3)
            else:
                tensor.fill_(5)
    return model


def ours(**settings: Any) -> ResNet:
    return noisy(ResNet(ResNetConfig(**{**SIZES, **settings}))).eval()


def images(channels: int = 2, size: int = 37) -> Tensor:
    made = torch.randn(3, channels, size, size + 4, generator=torch.Generator().manual_seed(1))
    return made.contiguous(memory_format=torch.channels_last)  # so that both sides sum in the same order


def their_output(model: nn.Module, pictures: Tensor) -> Tensor:
    found = model(pictures)
    if isinstance(found, Tensor):
        return found
    return found.logits if "logits" in found else found.pooler_output.flatten(1)


def gradients(model: nn.Module, output: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    (output * direction).sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def reopened(path: Path, other: Any, *, encoder: bool) -> Any:
    """Open a network that transformers has saved, and check its labels and that it is saved with the same tensors."""
    other.save_pretrained(path / "a")
    model = directory.load(path / "a").model
    assert model.config.labels == (() if encoder else ("one", "two", "three"))
    directory.save(path / "b", model)
    before, after = (load_file(path / each / "model.safetensors") for each in "ab")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return model


def assert_same(mine: nn.Module, other: nn.Module, pictures: Tensor, family: Any = RESNET) -> None:
    """Values, gradients and, after a step of training, running statistics; in eval and in train mode. In float64: how
    float32 rounds differs from processor to processor, and gradients of the first layers sum much of it up."""
    mine, other, pictures = deepcopy(mine).double(), deepcopy(other).double(), pictures.double()
    rename = family.renamed
    rows = {row.ours: row for row in family.weights(mine.config, mine.state_dict())}
    for training in (False, True):
        mine.train(training)
        other.train(training)
        found, expected = mine(pictures), their_output(other, pictures)
        assert torch.allclose(found, expected, atol=1e-12, rtol=1e-12)
        expected_grads = {rename(name): grad for name, grad in gradients(other, expected).items()}
        for name, grad in gradients(mine, found).items():
            pattern, numbers = slots(name)
            row = rows[name if name in rows else pattern]
            theirs = row.split(expected_grads[row.theirs.format(*numbers)])[0]
            assert torch.allclose(grad, theirs, atol=1e-12 * float(theirs.abs().max() + 1)), (training, name)
    states = {rename(name): tensor for name, tensor in other.state_dict().items()}
    made = family.tensors_of(mine)
    assert set(made) == set(states)
    for name, tensor in made.items():
        if "running" in name or "num_batches" in name:
            assert torch.allclose(tensor, states[name], atol=1e-12, rtol=1e-12), name


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_transformers_opens_saved_models(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = ours(**settings)
    assert directory.save(tmp_path, model, preprocessing={"size": {"shortest_edge": 37}}) == "resnet"
    kind = "ResNetModel" if settings.get("labels") == () else "ResNetForImageClassification"
    other, report = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(model, other, images())
    if kind != "ResNetModel":
        assert tuple(other.config.id2label.values()) == SIZES["labels"]
    loaded = directory.load(tmp_path)
    assert loaded.preprocessing == {"size": {"shortest_edge": 37}}
    assert loaded.model.config == model.config


@pytest.mark.parametrize("settings", [
    {"layer_type": "basic"}, {"layer_type": "basic", "downsample_in_bottleneck": True}, {},
    {"downsample_in_bottleneck": True, "downsample_in_first_stage": True},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["ResNetModel", "ResNetForImageClassification"])
def test_saved_transformers_models_open(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    other = noisy(getattr(transformers, kind)(transformers.ResNetConfig(**{**THEIRS, **settings}))).eval()
    model = reopened(tmp_path, other, encoder=kind == "ResNetModel")
    assert_same(model, other, images())


@pytest.mark.parametrize(("name", "settings"), [
    ("resnet18", {"layers": (1, 2, 1, 1), "channels": (16, 24, 20, 12)}),
    ("resnet50", {"layers": (1, 1, 2, 1), "channels": (5, 4, 6, 3)}),
    ("seresnet18", {"layers": (1, 1, 1, 1), "channels": (16, 24, 20, 12)}),
    ("seresnet50", {"layers": (1, 1, 1, 2), "channels": (5, 4, 6, 3), "num_classes": 0}),
])  # fmt: skip
def test_saved_timm_models_open(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    timm = load_timm()
    other = noisy(timm.create_model(name, **{"num_classes": 5, "in_chans": 2, **settings})).eval()
    timm.models.save_for_hf(other, tmp_path / "a", safe_serialization=True)
    loaded = directory.load(tmp_path / "a")
    model = loaded.model
    assert model.config.depths == settings["layers"]
    assert loaded.preprocessing is not None
    assert loaded.preprocessing["crop_size"] == {"height": 224, "width": 224}
    expected = timm.data.resolve_model_data_config(other)
    assert loaded.preprocessing["size"] == {"shortest_edge": int(224 / expected["crop_pct"])}
    assert loaded.preprocessing["image_mean"] == pytest.approx([sum(expected["mean"]) / 3] * 2)  # of two channels
    assert model.config.squeeze == (16 if name.startswith("se") else None)
    assert_same(model, other, images(size=41), TIMM_RESNET)
    saved = directory.save(tmp_path / "b", model)
    assert saved == ("manyheads-resnet" if name.startswith("se") else "resnet")
    again = directory.load(tmp_path / "b").model
    assert torch.equal(again(images()), model.eval()(images()))


@pytest.mark.parametrize(("change", "message"), [
    ({"architecture": "resnet50d"}, "'architecture' is 'resnet50d'; expected"),
    ({"architecture": "convnext_tiny"}, "expected a timm model with vit, deit, .* in its name, found convnext_tiny"),
    ({"model_args": {"aa_layer": "blur"}}, "'model_args' has 'aa_layer'"),
    ({"model_args": ["aa_layer"]}, "'model_args' is \\['aa_layer'\\]; expected a mapping"),
    ({"pretrained_cfg": {"crop_pct": 0.9}}, "'pretrained_cfg' is {'crop_pct': 0.9}; expected input_size"),
    ({"global_pool": "max"}, "'global_pool' is 'max'; only 'avg'"),
])  # fmt: skip
def test_models_that_timm_computes_differently_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    timm = load_timm()
    other = timm.create_model("resnet18", layers=(1, 1, 1, 1), channels=(4, 4, 4, 4), num_classes=2)
    timm.models.save_for_hf(other, tmp_path, safe_serialization=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        directory.load(tmp_path)


def test_loading_is_strict_about_buffers(tmp_path: Path) -> None:
    directory.save(tmp_path, ours())
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    mean, tracked = (
        f"resnet.embedder.embedder.normalization.{leaf}" for leaf in ("running_mean", "num_batches_tracked")
    )
    assert (whole[tracked].dtype, int(whole[tracked])) == (torch.int64, 5)
    for tensors, message in (
        ({k: t for k, t in whole.items() if k != mean}, f"missing: {mean} \\(11,\\)"),
        ({k: t for k, t in whole.items() if k != tracked}, f"missing: {tracked}"),
        ({**whole, mean: torch.zeros(12)}, "misshapen"),
        ({**whole, tracked: torch.zeros(())}, f"{tracked}: expected integers, found float32"),
        ({**whole, mean: torch.zeros(11, dtype=torch.int64)}, f"{mean}: expected real numbers, found int64"),
    ):
        save_file(tensors, file)
        with pytest.raises(ValueError, match=message):
            directory.load(tmp_path)


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; only 'relu'"),
    ({"depths": [1, "2"]}, "'depths' is \\(1, '2'\\): expected a list with each item an integer from 1 to 1000"),
    ({"depths": [1, 2000]}, "'depths' is"),
    ({"depths": [1]}, "expected one of each per stage"),
    ({"layer_type": "x"}, "'layer_type' is 'x'"),
    ({"architectures": ["ResNetBackbone"]}, "'architectures' is"),
    ({"quantization_config": {"bits": 4}}, "unknown key 'quantization_config'"),
])  # fmt: skip
def test_a_damaged_configuration_is_reported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    directory.save(tmp_path, ours())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        directory.load(tmp_path)


def own_models() -> dict[str, nn.Module]:
    small: dict[str, Any] = {**SIZES, "widths": (16, 32, 16), "stem_width": 8, "block": "basic"}
    return {
        "manyheads-resnet": ResNet(ResNetConfig(**SIZES, squeeze=4, stem="3x3")),
        "manyheads-nonlocal": NonLocalNet(NonLocalConfig(**small, kind="concatenation", every=1)),
        "manyheads-local-attention": LocalAttentionNet(
            LocalAttentionConfig(**small, window=5, heads=4, attends=(2, 3), query_block=2)
        ),
        "manyheads-sknet": SKNet(SKNetConfig(**small, split=False)),
        "manyheads-resnest": ResNeSt(ResNeStConfig(**small, radix=4)),
        "manyheads-gsa": GSANet(GSANetConfig(**{**small, "depths": (1,), "widths": (16,)}, heads=2)),
        "manyheads-conv-attention": ConvAttention(
            ConvAttentionConfig("content", labels=("a", "b"), image_size=50, channels=2, width=8, layers=1, heads=2)
        ),
    }


@pytest.mark.parametrize("model_type", own_models())
def test_our_own_directories_reload_identically(tmp_path: Path, model_type: str) -> None:
    model = noisy(own_models()[model_type]).eval()
    assert directory.save(tmp_path, model) == model_type
    loaded = directory.load(tmp_path).model
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    before, after = model.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(loaded(images(size=36)), model(images(size=36)))
