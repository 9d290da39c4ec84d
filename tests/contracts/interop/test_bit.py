"""Parity of BiT with transformers and timm, and its directories."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from manyheads import directory
from manyheads.interop.bit import BIT, TIMM_BIT
from manyheads.models.bit import Bit, BitConfig
from tests.contracts.interop.test_resnet import assert_same, images, noisy, reopened
from tests.support.timm_stub import load_timm

SIZES: dict[str, Any] = {"depths": (2, 1, 1), "widths": (32, 64, 96), "groups": 4, "stem_width": 12, "channels": 2,
                         "image_size": 37, "labels": ("cat", "crane", "crane")}  # fmt: skip
THEIRS: dict[str, Any] = {"depths": [1, 2], "hidden_sizes": [32, 64], "num_groups": 2, "embedding_size": 6,
                          "num_channels": 2, "id2label": {0: "one", 1: "two", 2: "three"}}  # fmt: skip


def ours(**settings: Any) -> Bit:
    return noisy(Bit(BitConfig(**{**SIZES, **settings}))).eval()


@pytest.mark.parametrize("settings", [{}, {"labels": ()}], ids=str)
def test_transformers_opens_saved_models(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = ours(**settings)
    assert directory.save(tmp_path, model) == "bit"
    kind = "BitModel" if settings.get("labels") == () else "BitForImageClassification"
    other, report = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(model, other, images(), BIT)
    assert directory.load(tmp_path).model.config == model.config


@pytest.mark.parametrize("kind", ["BitModel", "BitForImageClassification"])
def test_saved_transformers_models_open(tmp_path: Path, kind: str) -> None:
    other = noisy(getattr(transformers, kind)(transformers.BitConfig(**THEIRS))).eval()
    model = reopened(tmp_path, other, encoder=kind == "BitModel")
    assert_same(model, other, images(), BIT)


def timm_directory(path: Path) -> Any:
    """Write a small BiT as timm writes a large one. Return the network."""
    load_timm()
    from timm.layers import StdConv2d
    from timm.models.resnetv2 import ResNetV2

    network = noisy(
        ResNetV2(
            [1, 2], channels=(128, 256), stem_chs=32, in_chans=2, num_classes=5, stem_type="fixed",
            conv_layer=partial(StdConv2d, eps=1e-8),
        )
    ).eval()  # fmt: skip
    path.mkdir()
    save_file(network.state_dict(), path / "model.safetensors")
    settings = {"architecture": "resnetv2_50x1_bit", "num_classes": 5, "global_pool": "avg"}
    (path / "config.json").write_text(json.dumps(settings))
    return network


def test_saved_timm_models_open(tmp_path: Path) -> None:
    other = timm_directory(tmp_path / "a")
    model = directory.load(tmp_path / "a").model
    assert (model.config.depths, model.config.widths, model.config.stem_width) == ((1, 2), (128, 256), 32)
    for size in (37, 32):
        assert_same(model, other, images(size=size), TIMM_BIT)
    assert directory.save(tmp_path / "b", model) == "bit"


@pytest.mark.parametrize("architecture", ["resnetv2_50", "resnetv2_50x1_bit_2"])
def test_another_network_of_timm_is_refused(tmp_path: Path, architecture: str) -> None:
    timm_directory(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text(json.dumps({"architecture": architecture, "num_classes": 5}))
    with pytest.raises(ValueError, match=f"'architecture' is '{architecture}'; expected resnetv2_NxN_bit"):
        directory.load(tmp_path / "a")


def test_the_width_factor_of_transformers_is_no_wide_network() -> None:
    """The factor does not widen the stem, the last norm and the classifier. With wide sizes, the counts agree."""
    sizes: dict[str, Any] = {"depths": [3, 8, 36, 3], "num_labels": 1000}
    with torch.device("meta"):
        networks = [
            transformers.BitForImageClassification(transformers.BitConfig(**{**sizes, **more}))
            for more in ({"width_factor": 4}, {"hidden_sizes": [1024, 2048, 4096, 8192], "embedding_size": 256})
        ]
    counts = [sum(parameter.numel() for parameter in network.parameters()) for network in networks]
    assert counts == [930_102_568, 936_533_224]
    broken = transformers.BitModel(transformers.BitConfig(**{**THEIRS, "width_factor": 2}))
    with pytest.raises(RuntimeError, match="Expected weight to be a vector of size"):
        broken(images())


@pytest.mark.parametrize(("change", "message"), [
    ({"width_factor": 4}, "'width_factor' is 4; only 1"),
    ({"layer_type": "bottleneck"}, "'layer_type' is 'bottleneck'; only 'preactivation'"),
    ({"global_padding": "SAME"}, "'global_padding' is 'SAME'; only None"),
    ({"model_type": "big", "architectures": 5}, "found no architecture \\('model_type' is 'big'\\)"),
    ({"num_groups": 5}, "expected multiples of groups, which is 5"),
    ({"hidden_sizes": [32, 64, 64]}, "do not match"),
])  # fmt: skip
def test_a_damaged_configuration_is_reported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    directory.save(tmp_path, ours())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        directory.load(tmp_path)
