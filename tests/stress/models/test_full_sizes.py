"""Parity of large convolutional networks with timm, at their published sizes and with random weights.

In float64, because rounding of a hundred layers without batch norms exceeds 1e-5 of the largest output in float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from manyheads import directory
from tests.support.timm_stub import load_timm


@pytest.mark.parametrize(("name", "size"), [
    ("efficientnet_b0", 224), ("tf_efficientnet_b3", 300), ("tf_efficientnet_b7", 600), ("regnety_160", 224),
    ("resnetv2_101x1_bit", 224),
])  # fmt: skip
def test_outputs_equal_those_of_timm(tmp_path: Path, name: str, size: int) -> None:
    timm = load_timm()
    torch.manual_seed(0)
    theirs = timm.create_model(name).train()
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the statistics of this batch
    with torch.no_grad():
        theirs(images.float())
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": name, "num_classes": 1000}))
    ours = directory.load(tmp_path).model
    with torch.no_grad():
        found, expected = ours.double()(images), theirs.double().eval()(images)
    assert expected.std() > 0.01
    assert torch.allclose(found, expected, atol=1e-10, rtol=1e-10)
