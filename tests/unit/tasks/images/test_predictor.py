"""An image classifier that is loaded from a directory: labels that are hard to tell apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import directory
from manyheads.models.resnet import ResNet, ResNetConfig


def test_two_classes_of_one_name_are_distinct(tmp_path: Path) -> None:
    """As ImageNet's cranes; which is meant only a number tells."""
    names = ("cat", "crane", "crane")
    model = ResNet(ResNetConfig(widths=(8,), depths=(1,), image_size=8, labels=names))
    assert model.classifier is not None
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 8}
    directory.save(tmp_path / "net", model, preprocessing=half)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    file = tmp_path / "some.jsonl"
    file.write_text("".join(json.dumps({"image": "a.png", "label": label}) + "\n" for label in (0, 1, 2, 2)))
    classifier = manyheads.load(str(tmp_path / "net"))
    outcome = classifier.outcome(str(file))
    assert outcome.metrics["top1"]["value"] == np.mean(outcome.quality) == 0.5
    assert outcome.references == ["cat", "crane (1)", "crane (2)", "crane (2)"]
    assert classifier.classify(str(tmp_path / "a.png"))[0].label == "crane (2)"
    file.write_text(json.dumps({"image": "a.png", "label": "crane"}))
    with pytest.raises(ValueError, match=r"expected one of the labels cat, crane \(1\), crane \(2\).*, found 'crane'"):
        classifier.outcome(str(file))
