"""Attention maps of a classifier contain its prediction, which pages and pictures show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import directory
from manyheads.analysis.maps.page import page
from manyheads.models.presets import build
from manyheads.tasks.loading import load
from tests.support import services
from tests.support.map_examples import data_of


def test_the_maps_of_a_text_classifier_have_its_labels(tmp_path: Path) -> None:
    classifier = load(services.bert(tmp_path / "model", head="sequence", labels=("bad", "fair", "fine", "good")))
    found = [(str(label), label.probability) for label in classifier.classify("the cat sat", top=3)]
    maps = classifier.attend("the cat sat")
    assert list(maps.prediction) == found
    shown = data_of(page([maps])[0])["panels"][0]["prediction"]
    assert [label for label, _ in shown] == [label for label, _ in found]
    assert classifier.attend("the cat sat").words().prediction == maps.prediction


def test_the_maps_of_an_image_classifier_have_its_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vit = build(manyheads.preset("vit/2-8", width=16, layers=2, heads=2, labels=("0", "1")))
    sizes = {"size": {"height": 8, "width": 8}, "image_mean": [0.5], "image_std": [0.5]}
    directory.save(tmp_path / "vit", vit, preprocessing=sizes)
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    predictor = load(tmp_path / "vit")
    assert [label for label, _ in predictor.attend(image).prediction] == [
        label.label for label in predictor.classify(image, top=2)
    ]


@pytest.mark.parametrize("head", ["none", "masked_lm"])
def test_other_models_have_no_prediction(tmp_path: Path, head: str) -> None:
    assert load(services.bert(tmp_path / "model", head=head)).attend("the cat").prediction == ()
