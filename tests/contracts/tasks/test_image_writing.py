"""Image writing: training on digits, completions, bits per pixel, embeddings, attention, and clear refusals."""

from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import directory
from manyheads.cli import main
from manyheads.core.runtime import prepare
from manyheads.data.images.labeled_images import digits
from manyheads.service.server import Settings, service_of
from manyheads.tasks.image_writing.objective import batch_of, pixel_losses
from tests.support import services

SMALL: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return manyheads.load(services.image_writer(tmp_path_factory.mktemp("igpt") / "model"))


def gray(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (9, 9), dtype=np.uint8))


def test_an_igpt_is_trained_used_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["model.width=16", "model.layers=1", "model.heads=2", "colors=5", "items=64", "training.epochs=1"]
    assert main(["train", "image-writing", *settings, "--out", "run"]) == 0
    assert "transformers opens it as imagegpt" in capsys.readouterr().err
    result = json.loads(Path("run/result.json").read_text())
    loss, bits = (result["metrics"][name]["value"] for name in ("loss", "bits_per_pixel"))
    assert loss / math.log(2) == pytest.approx(bits)
    assert loss < math.log(5) + 0.01
    assert manyheads.load("run").evaluate().metrics["bits_per_pixel"]["value"] == pytest.approx(bits)
    digits(1).train.image(0).save("digit.png")
    command = ["generate", "run", "digit.png", "--samples", "3", "--keep", "0.25", "--seed", "4"]
    assert main([*command, "--out", "a.png"]) == main([*command, "--out", "b.png"]) == 0
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    sheet = np.asarray(Image.open("a.png"))
    assert sheet.shape == (96, 5 * 100 - 4, 3)
    assert (sheet[:24, :96] == sheet[:24, 100:196]).all()  # the kept part
    assert main(["attend", "run", "digit.png", "--out", "maps.html"]) == 0
    assert main(["embed", "run", "digit.png", "--layer", "0"]) == 0


def test_kept_pixels_stay_and_samples_depend_on_their_seed(writer: Any) -> None:
    images, palette = [gray(1), gray(2)], writer.preprocessing
    found = writer.generate(images, keep=0.5, samples=3, seed=7)
    for image, completions in zip(images, found, strict=True):
        kept = palette.array(image)[:8].tolist()
        assert [palette.array(each)[:8].tolist() for each in completions] == [kept] * 3
    again = writer.generate(images[1], keep=0.5, samples=1, seed=10)  # the seed of the first sample of the second image
    assert palette.array(again[0]).tolist() == palette.array(found[1][0]).tolist()
    assert len({each.tobytes() for each in found[0]}) > 1
    greedy = writer.generate(gray(), keep=0.0, top_k=1, samples=2)
    assert greedy[0].tobytes() == greedy[1].tobytes() == writer.generate(gray(3), keep=0.0, temperature=0)[0].tobytes()


def test_the_loss_is_the_mean_over_all_pixels(writer: Any) -> None:
    ids = np.stack([writer.preprocessing.array(gray(seed)) for seed in range(3)])
    losses = pixel_losses(writer.model, ids, prepare())
    logits = writer.model(batch_of(writer.model, ids).read).log_softmax(-1)
    assert batch_of(writer.model, ids).read[:, 0].tolist() == [5, 5, 5]
    for row, at in ((0, 0), (1, 7), (2, 15)):
        assert losses[row, at] == pytest.approx(-logits[row, at, ids[row, at]].item(), abs=1e-5)
    [changed] = writer.model(torch.tensor([[5, *ids[0][:14], (ids[0][14] + 1) % 5]])).log_softmax(-1)
    assert torch.allclose(changed[:15], logits[0, :15], atol=1e-6)  # no pixel depends on later pixels


def test_maps_show_the_earlier_pixels_of_each_pixel(writer: Any) -> None:
    [layer] = writer.attend(gray(), layers=[1])["self"]
    assert layer.weights.shape == (1, 2, 16, 17)
    assert np.allclose(layer.weights.sum(-1), 1, atol=1e-5)
    assert layer.keys.tokens[:2] == ("start", "0,0")
    later = np.arange(17)[None, :] > np.arange(16)[:, None]
    assert (layer.weights[0][:, later] == 0).all()
    assert layer.weights[0, :, 0, 0].tolist() == [1, 1]


def test_embeddings_are_means_over_pixels(writer: Any) -> None:
    ids = writer.preprocessing.array(gray())
    states = writer.model.states(batch_of(writer.model, ids[None]).read, layer=0)[0].detach()
    mean = torch.nn.functional.normalize(states.mean(0), dim=0).numpy()
    assert writer.embed(gray(), layer=0).vector == pytest.approx(mean, abs=1e-6)
    assert writer.embed([gray(), gray(1)], as_array=True).shape == (2, 16)


def test_options_that_do_not_fit_are_refused(writer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gray().save(tmp_path / "gray.png")
    image, text_model = str(tmp_path / "gray.png"), str(services.language_model(tmp_path / "gpt"))
    for words, message in (
        ((writer.path, image, "--stop", "x"), f"--stop: no effect, because {writer.path} reads images"),
        ((writer.path, image, "--json"), "--json: no effect"),
        ((writer.path, image, "--keep", "2"), "expected a number from 0 to 1"),
        ((writer.path, image, "--keep", "1"), "keep is 1.0"),
        ((writer.path, image, "--out", image), "is an input: give another file"),
        ((writer.path,), "give one IMAGE or more"),
        ((writer.path, "the cat"), "no such file"),
        ((text_model, image), "is a file, but a text is expected"),
        ((text_model, "the cat", "--keep", "0.5"), f"--keep: no effect, because {text_model} reads texts"),
    ):
        assert main(["generate", *map(str, words)]) == 2
        assert message in capsys.readouterr().err
    for verb in ("detect", "classify"):
        assert main([verb, str(writer.path), image]) == 2
        assert f"this model does not support {verb}" in capsys.readouterr().err


def test_a_model_keeps_its_colors_when_it_is_saved(writer: Any, tmp_path: Path) -> None:
    directory.load(writer.path).save(tmp_path / "copy")
    copy = manyheads.load(tmp_path / "copy")
    assert copy.preprocessing.array(gray()).tolist() == writer.preprocessing.array(gray()).tolist()
    assert copy.generate(gray(), seed=3)[0].tobytes() == writer.generate(gray(), seed=3)[0].tobytes()


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/embeddings", {}, ""), ("/attend", {}, ""),
        ("/v1/completions", {"prompt": "x"}, "igpt cannot generate: it can only embed"),
    ],
)  # fmt: skip
def test_the_service_shows_images_and_does_not_complete_them(
    path: str, fields: dict[str, str], expected: str, writer: Any
) -> None:
    file = io.BytesIO()
    gray().save(file, "PNG")
    image = base64.b64encode(file.getvalue()).decode()
    fields = fields or {"/attend": {"image": image}, "/v1/embeddings": {"input": image}}[path]
    service = service_of(Settings({"igpt": str(writer.path)}))
    reply = services.asked_of(service, lambda ask: ask(model="igpt", **fields), path)
    assert reply.status_code == (400 if expected else 200), reply.text
    if expected:
        assert expected in reply.json()["error"]["message"]
    elif path == "/v1/embeddings":
        vector = writer.embed(gray()).vector.tolist()
        assert reply.json()["data"][0]["embedding"] == pytest.approx(vector, abs=1e-5)
