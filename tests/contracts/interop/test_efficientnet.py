"""Parity of EfficientNet with transformers and timm, and its directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from manyheads import directory
from manyheads.interop.efficientnet import EFFICIENTNET, TIMM_EFFICIENTNET
from manyheads.interop.table import weights_to_ours
from manyheads.models.efficientnet import EfficientNet, EfficientNetConfig
from manyheads.models.presets import preset
from tests.contracts.interop.test_resnet import assert_same, images, noisy, reopened
from tests.support.timm_stub import load_timm

SIZES: dict[str, Any] = {
    "labels": ("cat", "crane", "crane"), "channels": 2, "image_size": 64, "width": 0.25, "depth": 0.4, "dropout": 0.0,
    "stochastic_depth": 0.0,
}  # fmt: skip
# In transformers, the momentum of a batch norm is that of TensorFlow, which PyTorch takes for its complement.
THEIRS: dict[str, Any] = {
    "num_channels": 2, "width_coefficient": 0.25, "depth_coefficient": 0.4, "hidden_dim": 320, "dropout_rate": 0.0,
    "drop_connect_rate": 0.0, "batch_norm_momentum": 0.1, "id2label": {0: "one", 1: "two", 2: "three"},
}  # fmt: skip


def ours(**settings: Any) -> EfficientNet:
    return noisy(EfficientNet(EfficientNetConfig(**{**SIZES, **settings}))).eval()


@pytest.mark.parametrize(("settings", "padding"), [
    ({}, []), ({"image_size": 50}, [1, 2, 3]),
    ({"padding": "end", "centered": (1, 2)}, [1, 2]), ({"labels": ()}, []),
], ids=str)  # fmt: skip
def test_transformers_opens_saved_models(tmp_path: Path, settings: dict[str, Any], padding: list[int]) -> None:
    model = ours(**settings)
    assert directory.save(tmp_path, model) == "efficientnet"
    assert json.loads((tmp_path / "config.json").read_text())["depthwise_padding"] == padding
    kind = "EfficientNetModel" if settings.get("labels") == () else "EfficientNetForImageClassification"
    other, report = getattr(transformers, kind).from_pretrained(
        tmp_path, output_loading_info=True, batch_norm_momentum=0.1
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    size = model.config.image_size if "padding" not in settings else 41
    square = images(size=size)[..., :size]
    assert_same(model, other, square, EFFICIENTNET)
    assert directory.load(tmp_path).model.config == model.config


@pytest.mark.parametrize("settings", [
    {},
    {"depthwise_padding": [1], "image_size": 50, "width_coefficient": 0.4, "hidden_dim": 512},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["EfficientNetModel", "EfficientNetForImageClassification"])
def test_saved_transformers_models_open(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    config = transformers.EfficientNetConfig(**{**THEIRS, **settings})
    other = noisy(getattr(transformers, kind)(config)).eval()
    model = reopened(tmp_path, other, encoder=kind == "EfficientNetModel")
    assert_same(model, other, images(), EFFICIENTNET)


def test_published_paddings_are_those_of_tensorflow() -> None:
    """Values of `depthwise_padding` in the published directories of B0 to B7."""
    published = [[], [16], [5, 8, 16], [5, 18], [6], [13, 27], [31], [18]]
    for number, expected in enumerate(published):
        assert EFFICIENTNET.settings_of(preset(f"efficientnet/b{number}"))["depthwise_padding"] == expected


@pytest.mark.parametrize("padding", ["same", "center"])
def test_values_equal_those_of_timm_for_even_and_odd_sizes(padding: str) -> None:
    load_timm()
    from timm.models.efficientnet import _gen_efficientnet

    settings: dict[str, Any] = {"pad_type": "same", "bn_eps": 1e-3} if padding == "same" else {}
    other = noisy(
        _gen_efficientnet(
            "tf_efficientnet_b0", channel_multiplier=0.5, depth_multiplier=0.4, num_classes=3, in_chans=2, **settings
        )
    ).eval()
    sizes = {**SIZES, "width": 0.5, "padding": padding, "norm_eps": settings.get("bn_eps", 1e-5)}
    model = EfficientNet(EfficientNetConfig(**sizes))
    tensors = {TIMM_EFFICIENTNET.renamed(name): tensor for name, tensor in other.state_dict().items()}
    rows = TIMM_EFFICIENTNET.weights(model.config, model.state_dict())
    model.load_state_dict(weights_to_ours(rows, model.state_dict(), tensors, {}))
    for size in (32, 41):
        assert_same(model.eval(), other, images(size=size), TIMM_EFFICIENTNET)


@pytest.mark.parametrize("name", ["efficientnet_b0", "tf_efficientnet_b1"])
def test_saved_timm_models_open(tmp_path: Path, name: str) -> None:
    timm = load_timm()
    torch.manual_seed(0)
    other = timm.create_model(name, num_classes=5).train()
    for module in other.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the statistics of one batch, without which the outputs of all images are alike
    with torch.no_grad():
        other(images(3, 96))
    other.eval()
    timm.models.save_for_hf(other, tmp_path / "a", safe_serialization=True)
    loaded = directory.load(tmp_path / "a")
    pictures = images(3, 61)
    with torch.no_grad():
        found, expected = loaded.model(pictures), other(pictures)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)
    assert expected.std() > 1e-3
    assert (loaded.model.config.padding, loaded.model.config.norm_eps) == (
        ("same", 1e-3) if name.startswith("tf") else ("center", 1e-5)
    )
    assert loaded.preprocessing is not None
    assert loaded.model.config.image_size == loaded.preprocessing["crop_size"]["height"]
    saved = directory.save(tmp_path / "b", loaded.model)
    assert saved == ("efficientnet" if name.startswith("tf") else "manyheads-efficientnet")


@pytest.mark.parametrize(("change", "message"), [
    ({"pooling_type": "max"}, "'pooling_type' is 'max'; only 'mean'"),
    ({"kernel_sizes": [3, 3, 3, 3, 3, 3, 3]}, "'kernel_sizes' is"),
    ({"width_coefficient": 0}, "'width_coefficient' is 0: expected a number above 0"),
    ({"padding": None, "depthwise_padding": ["1"]}, "centered is"),
    ({"padding": "valid"}, "padding is 'valid': expected one of same, end, center"),
    ({"width_coefficient": 0.7}, "do not match"),
    ({"architectures": ["EfficientNetBackbone"]}, "'architectures' is"),
])  # fmt: skip
def test_a_damaged_configuration_is_reported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    directory.save(tmp_path, ours())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        directory.load(tmp_path)


@pytest.mark.parametrize("change", [{"architecture": "efficientnet_b8"}, {"model_args": {"bn_eps": 0.1}}], ids=str)
def test_models_that_timm_computes_differently_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    timm = load_timm()
    timm.models.save_for_hf(timm.create_model("efficientnet_b0", num_classes=2), tmp_path, safe_serialization=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match="expected efficientnet_b0 to b7|'model_args' has 'bn_eps'"):
        directory.load(tmp_path)
