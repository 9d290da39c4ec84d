"""Logit lens of images: the class token gets the model's prediction, patches the label of the same head."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import cli, directory
from manyheads.models.presets import build
from manyheads.tasks.loading import load

SIZES: dict[str, Any] = {"width": 16, "layers": 3, "heads": 2, "labels": ("cat", "dog", "bird", "fish")}


def classifier(path: Path, preset: str = "vit/2-8", **settings: Any) -> Any:
    torch.manual_seed(0)
    sizes = SIZES if preset.startswith("vit") else {"labels": SIZES["labels"]}
    model = build(manyheads.preset(preset, **{**sizes, **settings})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    size = model.image_size
    prepared: dict[str, Any] = {"size": {"height": size, "width": size}, "image_mean": [0.5] * model.channels}
    prepared["image_std"] = prepared["image_mean"]
    directory.save(path, model, preprocessing=prepared)
    return load(path)


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)).save(file)
    return file


@pytest.mark.parametrize(
    "settings", [{}, {"distilled": True}, {"distilled": True, "fused": "logits"}, {"registers": 2, "representation": 8}]
)
def test_the_last_layer_gives_the_class_token_the_prediction(
    tmp_path: Path, photo: Path, settings: dict[str, Any]
) -> None:
    vit = classifier(tmp_path / "vit", **settings)
    lens = vit.lens(photo, top=4)
    predicted = vit.classify(str(photo), top=4)
    assert lens.words[-1][0] == [each.label for each in predicted]
    np.testing.assert_allclose(lens.probabilities[-1, 0], [each.probability for each in predicted], rtol=1e-5)
    before = 1 + settings.get("distilled", 0) + settings.get("registers", 0)
    assert lens.tokens[0] == "[class]"
    assert lens.tokens[before:] == tuple(f"{y},{x}" for y in range(4) for x in range(4))
    assert lens.answers == (predicted[0].label,) * len(lens.tokens)
    assert (lens.ranks[-1, 0], lens.kl[-1, 0]) == (1, 0)
    assert (lens.kl[-1, 1:] > 0).all()  # patches are compared with the class token


@torch.no_grad()
def test_patches_are_labeled_by_the_head_after_the_final_norm(tmp_path: Path, photo: Path) -> None:
    vit = classifier(tmp_path / "vit")
    pixels, _, _ = vit._read(photo)
    model, states = vit.model, vit.model.all_states(pixels)
    lens = vit.lens(photo, top=4)
    for layer, state in enumerate(states):
        p = model.head(model.encoder.norm(state))[0].softmax(-1)  # (T, 4)
        np.testing.assert_allclose(lens.probabilities[layer], p.sort(descending=True).values, rtol=1e-4)


def test_the_command_prints_the_class_token_of_each_layer_and_draws(
    tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vit = classifier(tmp_path / "vit")
    lens = vit.lens(photo)
    for name in ("lens.html", "lens.png"):
        assert cli.main(["lens", str(vit.path), str(photo), "--out", str(tmp_path / name)]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    head, *rows = out.splitlines()[:5]
    assert head.split() == ["[class]", "rank", "of", lens.answers[0], "KL", "(nats)"]
    assert rows[-1].split()[:3] == ["layer", "2", lens.answers[0]]
    assert "data:image/png;base64" in (tmp_path / "lens.html").read_text()
    with Image.open(tmp_path / "lens.png") as image:
        assert image.width > 500


@pytest.mark.parametrize(
    ("preset", "settings", "message"),
    [
        ("vit/2-8", {"pool": "mean"}, "needs a head that reads the class token, but this model pools its patches"),
        ("resnet/20-small", {}, "the lens of images needs a ViT with a class token, found ResNet"),
        ("vit/2-8", {"target": "multi-label"}, "the lens needs a model that predicts one of several labels"),
    ],
)
def test_other_models_are_refused_in_one_line(
    tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str], preset: str, settings: dict[str, Any], message: str
) -> None:
    vit = classifier(tmp_path / "model", preset, **settings)
    assert cli.main(["lens", str(vit.path), str(photo)]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert message in error
    assert cli.main(["lens", str(vit.path), "--tune", str(photo), "--out", str(tmp_path / "a.safetensors")]) == 2
