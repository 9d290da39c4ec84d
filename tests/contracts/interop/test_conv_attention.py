"""Directories of models with attention as convolution: saved as our model type, and identical after loading."""

import json
from pathlib import Path
from typing import get_args

import pytest
import torch

from manyheads.directory import load, save
from manyheads.models.conv_attention import ConvAttention, Kind
from manyheads.models.presets import preset


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_model_reloads_identically(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    sizes = {"width": 6, "layers": 2, "heads": 4, "feed_forward": 5, "image_size": 8, "labels": ("cat", "dog")}
    model = ConvAttention(preset(f"conv-attention/{kind}", **sizes)).eval()
    assert save(tmp_path / "m", model, None) == "manyheads-conv-attention"
    assert json.loads((tmp_path / "m" / "config.json").read_text())["kind"] == kind
    again = load(tmp_path / "m").model
    assert isinstance(again, ConvAttention)
    assert again.config == model.config
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(again(images), model(images))


def test_a_damaged_layer_count_does_not_exhaust_memory(tmp_path: Path) -> None:
    model = ConvAttention(
        preset("conv-attention/quadratic", width=4, layers=1, feed_forward=4, image_size=4, labels=("a", "b"))
    )
    save(tmp_path, model, None)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "layers": 10**9}))
    with pytest.raises(ValueError, match="layers is 1000000000: expected an integer from 1 to 1000"):
        load(tmp_path)
