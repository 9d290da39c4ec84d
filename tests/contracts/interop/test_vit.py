"""Parity of ViT and DeiT with transformers and timm: both directions, values, gradients, maps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from manyheads import directory
from manyheads.core.recording import record
from manyheads.interop.family import Family
from manyheads.interop.vit import DEIT, TIMM_VIT, VIT
from manyheads.models.adapt import adapt
from manyheads.models.vit import ViT, ViTConfig
from tests.support.refusals import assert_settings_refused
from tests.support.timm_stub import load_timm

SIZES: dict[str, Any] = {"image_size": 15, "patch": 5, "channels": 2, "width": 21, "layers": 2, "heads": 3,
                         "feed_forward": 34, "labels": ("cat", "dog", "dog", "emu")}  # fmt: skip
THEIR_SIZES: dict[str, Any] = {
    "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 17, "image_size": 21,
    "patch_size": 7, "num_channels": 2, "id2label": {0: "one", 1: "two", 2: "three"},
}  # fmt: skip
# architecture -> what is ours
KINDS: dict[str, dict[str, Any]] = {
    "ViTForImageClassification": {},
    "ViTModel": {"labels": (), "representation": 13},
    "DeiTForImageClassification": {"distilled": True, "fused": "none"},
    "DeiTForImageClassificationWithTeacher": {"distilled": True, "fused": "logits"},
    "DeiTModel": {"labels": (), "representation": 21, "distilled": True, "fused": "none"},
}


def noisy(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def ours(**settings: Any) -> ViT:
    torch.manual_seed(0)
    return noisy(ViT(ViTConfig(**{**SIZES, **settings}))).eval()


def theirs(kind: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config_class: Any = transformers.DeiTConfig if kind.startswith("DeiT") else transformers.ViTConfig
    config = config_class(**{**THEIR_SIZES, **settings}, attn_implementation="eager")
    return noisy(getattr(transformers, kind)(config)).eval()


def images(size: int) -> Tensor:
    return torch.randn(3, 2, size, size, generator=torch.Generator().manual_seed(1))


def answers(model: Any, x: Tensor) -> list[Tensor]:
    """Return the outputs of a model of either library: logits (of two heads also their mean), or states and pooled
    states.
    """
    if isinstance(model, ViT):
        if not model.config.labels:
            states = model.encode(x)
            return [states, model.pool(states)]
        given = model(x)
        if model.distillation_head is None:
            return [given]
        states = model.encode(x)
        assert model.head is not None
        both = [model.head(states[:, 0]), model.distillation_head(states[:, 1])]
        return both if model.training else [given, *both]
    output = model(pixel_values=x)
    if "cls_logits" in output:
        both = [output.cls_logits, output.distillation_logits]
        return both if model.training else [output.logits, *both]
    return [output.logits] if "logits" in output else [output.last_hidden_state, output.pooler_output]


def weighted(parts: Sequence[Tensor]) -> Tensor:
    """Return a number that depends on every element."""
    return torch.stack([(part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum() for part in parts]).sum()


def same(mine: nn.Module, other: nn.Module, size: int) -> None:
    """Compare outputs in both modes, and the gradients of the images."""
    for training in (False, True):
        found = []
        for model in (mine.train(training), other.train(training)):
            model.zero_grad()
            x = images(size).requires_grad_()
            parts = answers(model, x)
            weighted(parts).backward()
            assert x.grad is not None
            found.append([*parts, x.grad])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    mine.eval()
    other.eval()


def gradients(model: Any) -> Any:
    """The model with its gradients in place of its weights, so that they too can be written under their names."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    return model


def agree(family: Family, mine: ViT, expected: Mapping[str, Tensor]) -> None:
    found = family.tensors_of(mine)
    assert set(found) == set(expected)
    for name, tensor in found.items():
        scale = max(1.0, float(expected[name].abs().max()))  # a bias of keys has a gradient of zero
        assert float((tensor - expected[name]).abs().max()) < 1e-5 * scale, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_transformers_models_load_with_equal_results(kind: str, qkv_bias: bool, tmp_path: Path) -> None:
    other = theirs(kind, qkv_bias=qkv_bias)
    other.save_pretrained(tmp_path)
    loaded = directory.load(tmp_path)
    model = loaded.model
    assert loaded.family == ("deit" if kind.startswith("DeiT") else "vit")
    assert model.config.labels == (() if kind.endswith("Model") else ("one", "two", "three"))
    assert model.config.fused == KINDS[kind].get("fused", "softmax")
    same(model, other, 21)
    gradients(other).save_pretrained(tmp_path / "gradients")
    family = DEIT if kind.startswith("DeiT") else VIT
    agree(family, gradients(model), load_file(tmp_path / "gradients" / "model.safetensors"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_our_settings_become_theirs(kind: str, qkv_bias: bool, tmp_path: Path) -> None:
    model = ours(**KINDS[kind], stochastic_depth=0.0, qkv_bias=qkv_bias)
    assert directory.save(tmp_path, model) == ("deit" if kind.startswith("DeiT") else "vit")
    auto = transformers.AutoModel if kind.endswith("Model") else transformers.AutoModelForImageClassification
    other, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(other).__name__ == kind
    assert not any(report[part] for part in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if model.config.labels:
        assert [other.config.id2label[i] for i in range(4)] == list(model.config.labels)
    same(model, other, 15)
    again = directory.load(tmp_path).model
    assert again.config == model.config
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in model.named_parameters())


def test_our_own_fields_are_exported(tmp_path: Path) -> None:
    """Sums of softmaxes and stochastic depth: transformers opens the directory, and its logits of both heads agree."""
    model = ours(distilled=True, fused="softmax", stochastic_depth=0.3)
    directory.save(tmp_path / "ours", model)
    other = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "ours").eval()
    other.save_pretrained(tmp_path / "theirs")
    assert directory.load(tmp_path / "theirs").model.config == model.config
    output = other(pixel_values=images(15))
    expected = (output.cls_logits.softmax(-1) + output.distillation_logits.softmax(-1)) / 2
    torch.testing.assert_close(model(images(15)).exp(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{"pool": "mean"}, {"representation": 9}, {"distilled": True, "representation": 9}]
)
def test_models_unknown_to_transformers_are_saved_in_our_format(settings: dict[str, Any], tmp_path: Path) -> None:
    model = ours(**settings)
    assert directory.save(tmp_path, model) == "manyheads-vit"
    again = directory.load(tmp_path).model
    assert again.config == model.config
    assert torch.equal(again(images(15)), model(images(15)))


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "DeiTForImageClassificationWithTeacher"])
def test_recorded_maps_equal_transformers(kind: str, tmp_path: Path) -> None:
    other = theirs(kind)
    other.save_pretrained(tmp_path)
    model = directory.load(tmp_path).model
    for block in model.encoder.blocks:
        block.attention.explicit = False  # by the fused kernel
    with record(model) as maps:
        model(images(21))
    attentions = other(pixel_values=images(21), output_attentions=True).attentions
    assert list(maps) == [f"encoder.blocks.{n}.attention" for n in range(3)]
    for mine, expected in zip(maps.values(), attentions, strict=True):
        torch.testing.assert_close(mine[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "DeiTForImageClassificationWithTeacher"])
def test_a_higher_resolution_interpolates_positions(kind: str, tmp_path: Path) -> None:
    other = theirs(kind)
    other.save_pretrained(tmp_path)
    larger, new = adapt(directory.load(tmp_path).model, image_size=35)
    assert new == []
    expected = other(pixel_values=images(35), interpolate_pos_encoding=True).logits
    torch.testing.assert_close(larger(images(35)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv_bias": False}, "unexpected: vit.encoder.layer.0.attention.attention.key.bias"),
        ({"image_size": [21, 28]}, r"'image_size' is \[21, 28\]: expected an integer"),
        ({"image_size": 22}, "22 pixels are not divisible by the patch size 7: the nearest valid sizes are 21 and 28"),
        ({"image_size": 28}, r"misshapen: vit.embeddings.position_embeddings: expected the shape .*, found "
                             r"\(1, 10, 30\) in the file"),
        ({"architectures": ["ViTForMaskedImageModeling"]}, r"expected one of ViTModel, ViTForImageClassification$"),
        ({"pooler_act": "gelu"}, "'pooler_act' is 'gelu'"),
        ({"num_hidden_layers": 2}, "unexpected: vit.encoder.layer.2"),
        ({"model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"], "fused": "sum"},
         "fused is 'sum': expected one of softmax, logits, none"),
    ],
)  # fmt: skip
def test_unrepresentable_settings_are_reported(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs("ViTForImageClassification").save_pretrained(tmp_path)
    assert_settings_refused(tmp_path, change, message)


TIMM: dict[str, Any] = {"img_size": 15, "patch_size": 5, "in_chans": 2, "embed_dim": 24, "depth": 2, "mlp_ratio": 2.5,
                        "num_classes": 7}  # fmt: skip


def timm_model(name: str, **settings: Any) -> Any:
    timm = load_timm()
    torch.manual_seed(0)
    return noisy(timm.create_model(name, **{**TIMM, **settings})).eval()


def save_timm(model: Any, path: Path) -> None:
    from timm.models import save_for_hf

    save_for_hf(model, str(path), safe_serialization=True)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_small_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_timm_models_load_with_equal_results(name: str, tmp_path: Path) -> None:
    other = timm_model(name, qkv_bias="deit" in name)
    save_timm(other, tmp_path)
    model = directory.load(tmp_path).model
    distilled = "distilled" in name
    assert model.config.distilled == distilled
    assert model.config.heads == (6 if "small" in name else 3)
    assert model.config.qkv_bias == ("deit" in name)
    for training in (False, True):
        if distilled:
            other.set_distilled_training(training)
        found = []
        for each in (model.train(training), other.train(training)):
            each.zero_grad()
            x = images(15).requires_grad_()
            given = each(x)
            parts = given if isinstance(given, tuple) else (given,)
            assert len(parts) == 1 + (distilled and training)
            weighted(parts).backward()
            found.append([*parts, x.grad])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    agree(TIMM_VIT, gradients(model), gradients(other).state_dict())


def test_unsupported_timm_models_are_refused(tmp_path: Path) -> None:
    save_timm(timm_model("vit_tiny_patch16_224"), tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    for change, message in [
        ({"architecture": "vit_base_patch16_siglip_224"}, "'architecture' is 'vit_base_patch16_siglip_224'; expected"),
        ({"model_args": {"qk_norm": True}}, "'model_args' has 'qk_norm': True"),
        ({"global_pool": "map"}, "'global_pool' is 'map'; only 'token' and 'avg' can be represented"),
    ]:
        file.write_text(json.dumps(settings | change))
        with pytest.raises(ValueError, match=message):
            directory.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("vit_tiny_patch16_224", {"global_pool": "avg"}, {"pool": "patches", "norm_after_pool": True}),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "fc_norm": False}, {"pool": "patches"}),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False},
         {"pool": "mean", "norm_after_pool": True}),
        ("vit_tiny_patch16_224", {"fc_norm": True}, {}),
        ("vit_medium_patch16_gap_240", {}, {"pool": "mean", "qkv_bias": False, "heads": 8}),
        ("vit_base_patch16_gap_224", {"embed_dim": 32}, {"pool": "mean", "heads": 16}),
        ("vit_base_patch16_clip_quickgelu_224", {}, {"embedding_norm": True, "activation": "quick_gelu"}),
        ("vit_small_patch14_dinov2", {}, {"registers": 0}),
        ("vit_small_patch14_reg4_dinov2", {}, {"registers": 4}),
    ],
)  # fmt: skip
def test_variants_of_timm_load_with_equal_results(
    name: str, given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    other = timm_model(name, **given)
    save_timm(other, tmp_path)
    model = directory.load(tmp_path).model
    assert {key: getattr(model.config, key) for key in expected} == expected
    torch.testing.assert_close(model(images(15)), other(images(15)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        model.features(images(15)), other.forward_head(other.forward_features(images(15)), pre_logits=True),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    directory.save(tmp_path / "again", model)
    assert torch.equal(directory.load(tmp_path / "again").model(images(15)), model(images(15)))
