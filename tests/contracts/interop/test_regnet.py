"""Parity of RegNetY with transformers and timm, and its directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from manyheads import directory
from manyheads.interop.regnet import REGNET, TIMM_REGNET
from manyheads.models.regnet import RegNet, RegNetConfig
from tests.contracts.interop.test_resnet import assert_same, images, noisy, reopened
from tests.support.timm_stub import load_timm

SIZES: dict[str, Any] = {"depths": (2, 1, 1), "widths": (12, 20, 28), "group_width": 4, "stem_width": 11, "channels": 2,
                         "image_size": 37, "labels": ("cat", "crane", "crane")}  # fmt: skip
THEIRS: dict[str, Any] = {"depths": [1, 2], "hidden_sizes": [12, 36], "groups_width": 6, "embedding_size": 7,
                          "num_channels": 2, "id2label": {0: "one", 1: "two", 2: "three"}}  # fmt: skip


def ours(**settings: Any) -> RegNet:
    return noisy(RegNet(RegNetConfig(**{**SIZES, **settings}))).eval()


@pytest.mark.parametrize("settings", [{}, {"labels": ()}, {"group_width": 40}], ids=str)
def test_transformers_opens_saved_models(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = ours(**settings)
    assert directory.save(tmp_path, model) == "regnet"
    kind = "RegNetModel" if settings.get("labels") == () else "RegNetForImageClassification"
    other, report = getattr(transformers, kind).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same(model, other, images(), REGNET)
    assert directory.load(tmp_path).model.config == model.config


@pytest.mark.parametrize("kind", ["RegNetModel", "RegNetForImageClassification"])
def test_saved_transformers_models_open(tmp_path: Path, kind: str) -> None:
    other = noisy(getattr(transformers, kind)(transformers.RegNetConfig(**THEIRS))).eval()
    model = reopened(tmp_path, other, encoder=kind == "RegNetModel")
    assert_same(model, other, images(), REGNET)


def test_saved_timm_models_open(tmp_path: Path) -> None:
    timm = load_timm()
    other = noisy(timm.create_model("regnety_002", num_classes=5, in_chans=2)).eval()
    timm.models.save_for_hf(other, tmp_path / "a", safe_serialization=True)
    loaded = directory.load(tmp_path / "a")
    model = loaded.model
    assert (model.config.depths, model.config.widths) == ((1, 1, 4, 7), (24, 56, 152, 368))
    assert (model.config.group_width, model.config.stem_width) == (8, 32)
    assert loaded.preprocessing is not None
    assert_same(model, other, images(size=33), TIMM_REGNET)
    assert directory.save(tmp_path / "b", model) == "regnet"


@pytest.mark.parametrize(("change", "message"), [
    ({"layer_type": "x"}, "'layer_type' is 'x'; only 'y'"),
    ({"groups_width": 5, "hidden_sizes": [12, 20, 29]}, "widths is .*: expected .* groups divide"),
    ({"groups_width": 2}, "do not match"),
    ({"downsample_in_first_stage": False}, "'downsample_in_first_stage' is False; only True"),
])  # fmt: skip
def test_a_damaged_configuration_is_reported(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    directory.save(tmp_path, ours())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        directory.load(tmp_path)


def test_another_regnet_of_timm_is_refused(tmp_path: Path) -> None:
    timm = load_timm()
    timm.models.save_for_hf(timm.create_model("regnetz_005", num_classes=2), tmp_path, safe_serialization=True)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architecture": "regnety_008_tv"}))
    with pytest.raises(ValueError, match="'architecture' is 'regnety_008_tv'; expected regnety_N"):
        directory.load(tmp_path)
