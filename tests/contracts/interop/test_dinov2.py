"""Parity of DINOv2 with transformers, with and without registers; and use of image models without a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import manyheads
from manyheads import cli, directory
from manyheads.interop.formats import FAMILIES
from manyheads.models.adapt import adapt
from manyheads.models.vit import ViT, ViTConfig
from tests.contracts.interop.test_vit import agree, gradients, noisy, weighted

KINDS = {"dinov2": 0, "dinov2_with_registers": 3}
UNREAD = {"embeddings.mask_token"}


def theirs(kind: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2,
                             "image_size": 21, "patch_size": 7, "num_channels": 2, "layerscale_value": 0.5}  # fmt: skip
    if KINDS[kind]:
        config: Any = transformers.Dinov2WithRegistersConfig(num_register_tokens=KINDS[kind], **sizes, **settings)
        return noisy(transformers.Dinov2WithRegistersModel(config)).eval()
    return noisy(transformers.Dinov2Model(transformers.Dinov2Config(**sizes, **settings))).eval()


def ours(kind: str) -> ViT:
    torch.manual_seed(0)
    config = ViTConfig(
        labels=(), image_size=15, patch=5, channels=2, width=21, layers=2, heads=3, feed_forward=63, layer_scale=0.3,
        registers=KINDS[kind],
    )  # fmt: skip
    return noisy(ViT(config))


def same(model: ViT, other: Any) -> None:
    """States and pooled states in both modes; leaves the gradients of both for the last."""
    size = model.config.image_size
    images = torch.randn(3, 2, size, size, generator=torch.Generator().manual_seed(1))
    for training in (False, True):
        model.train(training).zero_grad()
        other.train(training).zero_grad()
        states = model.encode(images)
        mine: list[Tensor] = [states, model.pool(states)]
        output = other(pixel_values=images)
        expected = [output.last_hidden_state, output.pooler_output]
        for a, b in zip(mine, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        weighted(mine).backward()
        weighted(expected).backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_transformers_models_load_and_save_with_equal_results(kind: str, qkv_bias: bool, tmp_path: Path) -> None:
    other = theirs(kind, qkv_bias=qkv_bias)
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    assert loaded.family == kind
    assert loaded.model.config.registers == KINDS[kind]
    same(loaded.model, other)
    directory.save(tmp_path / "again", loaded.model)
    again, info = type(other).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert set(info["missing_keys"]) <= UNREAD
    assert not info["unexpected_keys"]
    for name, tensor in other.state_dict().items():
        assert name in UNREAD or torch.equal(again.state_dict()[name], tensor), name
    expected = {name: p.grad for name, p in other.named_parameters() if p.grad is not None}
    for part in expected:
        other.get_parameter(part).data.copy_(expected[part])
    other.save_pretrained(tmp_path / "gradients")
    tensors = load_file(tmp_path / "gradients" / "model.safetensors")
    family = FAMILIES[kind]
    agree(family, gradients(loaded.model), {name: t for name, t in tensors.items() if name not in UNREAD})


@pytest.mark.parametrize("kind", KINDS)
def test_our_settings_become_theirs(kind: str, tmp_path: Path) -> None:
    model = ours(kind)
    assert directory.save(tmp_path, model) == kind
    other, info = transformers.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) <= UNREAD
    assert not info["unexpected_keys"]
    same(model, other)
    assert directory.load(tmp_path).model.config == model.config


@pytest.mark.parametrize("kind", KINDS)
def test_classifiers_load_and_save_with_equal_results(kind: str, tmp_path: Path) -> None:
    name = "Dinov2WithRegisters" if KINDS[kind] else "Dinov2"
    config = theirs(kind).config
    config.id2label = {0: "one", 1: "two", 2: "three"}
    other = noisy(getattr(transformers, f"{name}ForImageClassification")(config)).eval()
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    model = loaded.model
    assert model.config.labels == ("one", "two", "three")
    images = torch.randn(3, 2, 21, 21)
    torch.testing.assert_close(model(images), other(pixel_values=images).logits, rtol=1e-5, atol=1e-5)
    assert directory.save(tmp_path / "again", model) == kind
    again, info = type(other).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert set(info["missing_keys"]) <= {f"{kind}.embeddings.mask_token"}
    assert not info["unexpected_keys"]
    torch.testing.assert_close(again(pixel_values=images).logits, model(images), rtol=1e-5, atol=1e-5)
    assert again.config.id2label == other.config.id2label
    larger, _ = adapt(model, image_size=28)
    images = torch.randn(2, 2, 28, 28)
    torch.testing.assert_close(larger(images), other(pixel_values=images).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_swiglu_ffn": True}, "'use_swiglu_ffn' is True; only False can be represented"),
        ({"architectures": ["Dinov2Backbone"]}, "expected one of Dinov2Model, Dinov2ForImageClassification"),
        ({"mlp_ratio": 3}, "misshapen: encoder.layer.0.mlp.fc1"),
    ],
)
def test_unrepresentable_settings_are_reported(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs("dinov2").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        directory.load(tmp_path)


def image(path: Path, seed: int = 0) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 255, (30, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def headless(kind: str) -> Any:
    sizes: dict[str, Any] = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
                             "patch_size": 4}  # fmt: skip
    torch.manual_seed(0)
    if kind == "vit":
        return transformers.ViTModel(transformers.ViTConfig(intermediate_size=20, **sizes), add_pooling_layer=False)
    if kind == "vit with pooler":
        return transformers.ViTModel(transformers.ViTConfig(intermediate_size=20, **sizes))
    return transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**sizes))


@pytest.mark.parametrize("kind", ["vit", "vit with pooler", "dinov2"])
def test_a_model_without_a_head_is_inspected_and_fine_tuned(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = headless(kind)
    other.save_pretrained(tmp_path / "model")
    encoder = manyheads.load(tmp_path / "model")
    assert "no head" in repr(encoder)
    maps = encoder.attend(image(tmp_path / "a.png"))["self"]
    special = 5 if kind == "dinov2" else 1
    assert maps[0].weights.shape[-2:] == (16 + special, 16 + special)
    assert maps[0].keys.tokens[0] == "[class]"
    assert maps[0].keys.tokens[1:special] == tuple(f"[register {n}]" for n in range(4))[: special - 1]
    arguments = ["attend", str(tmp_path / "model"), str(tmp_path / "a.png"), "--out", str(tmp_path / "maps.npz")]
    assert cli.main(arguments) == 0
    assert cli.main(["classify", str(tmp_path / "model"), str(tmp_path / "a.png")]) == 2
    capsys.readouterr()
    settings = {"training.steps": 1, "items": 40, "threads": 1, "model.image_size": 16}
    (tmp_path / "data").mkdir()
    for seed, label in enumerate(("cat", "dog")):
        (tmp_path / "data" / label).mkdir()
        for n in range(20):
            image(tmp_path / "data" / label / f"{n}.png", 100 * seed + n)
    manyheads.train(
        "image-classification", {**settings, "data": str(tmp_path / "data")}, out=tmp_path / "run",
        init=str(tmp_path / "model"),
    )  # fmt: skip
    tuned = directory.load(tmp_path / "run")
    assert set(tuned.model.config.labels) == {"cat", "dog"}
    assert tuned.family == ("manyheads-vit" if kind == "dinov2" else "vit")


@pytest.mark.parametrize("size", [8, 24])
@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_other_image_sizes_resize_the_positions(kind: str, size: int, tmp_path: Path) -> None:
    """DINOv2's own directories hold positions of 518 pixels and frame images of 224."""
    other = noisy(headless(kind)).eval()
    other.save_pretrained(tmp_path)
    transformers.ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(tmp_path)
    encoder = manyheads.load(tmp_path)
    assert encoder.model.config.image_size == size
    pixels = torch.randn(1, 3, size, size)
    whatever_its_size = {} if kind == "dinov2" else {"interpolate_pos_encoding": True}
    expected = other(pixel_values=pixels, **whatever_its_size).last_hidden_state
    torch.testing.assert_close(encoder.model.encode(pixels), expected, rtol=1e-5, atol=1e-5)
    same_size, _ = adapt(directory.load(tmp_path).model, image_size=size)
    torch.testing.assert_close(same_size.encode(pixels), expected, rtol=1e-5, atol=1e-5)
