"""Parity of iGPT with transformers: logits, greedy completions, color ids, and directories both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from torch import Tensor
from transformers.models.imagegpt.image_processing_pil_imagegpt import ImageGPTImageProcessorPil

import manyheads
from manyheads import directory
from manyheads.analysis import costs
from manyheads.data.images.palette import Palette, k_means, nearest
from manyheads.errors import UserError
from manyheads.models.igpt import IGPT, IGPTConfig

transformers: Any = untyped_transformers  # whose configurations take more arguments than their types say

COLORS, SIDE = 12, 6


def theirs(**settings: Any) -> Any:
    config = transformers.ImageGPTConfig(
        vocab_size=COLORS + 1, n_positions=SIDE**2, n_embd=16, n_layer=3, n_head=2, **settings
    )
    torch.manual_seed(0)
    model = transformers.ImageGPTForCausalImageModeling(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.3 + (tensor.dim() == 1))
    return model


def processor() -> Any:
    clusters = np.random.default_rng(1).uniform(-1, 1, (COLORS, 3))
    return ImageGPTImageProcessorPil(clusters=clusters.tolist(), size={"height": SIDE, "width": SIDE})


def picture(width: int = 40, height: int = 30) -> Image.Image:
    pixels = np.random.default_rng(2).integers(0, 256, (height // 5, width // 5, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def ids_of(model: Any, rows: int = 2) -> Tensor:
    ids = torch.randint(COLORS, (rows, SIDE**2 - 1), generator=torch.Generator().manual_seed(3))
    return torch.cat([torch.full((rows, 1), COLORS), ids], 1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    theirs().save_pretrained(tmp_path / "theirs")
    processor().save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


@pytest.mark.parametrize("settings", [{}, {"activation_function": "gelu", "n_inner": 24}])
def test_igpt_computes_as_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    other = theirs(**settings)
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    ids = ids_of(other)
    assert loaded.family == "imagegpt"
    assert torch.allclose(loaded.model(ids), other(ids).logits, atol=1e-5)
    loaded.save(tmp_path / "ours")
    again = transformers.ImageGPTForCausalImageModeling.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(again(ids).logits, other(ids).logits)


def test_an_image_has_the_ids_of_transformers(saved: Path, tmp_path: Path) -> None:
    loaded = directory.load(saved)
    palette = manyheads.load(saved).preprocessing
    for image in (picture(), picture(SIDE, SIDE), picture(20, 90)):
        [expected] = processor()(image, return_tensors="np")["input_ids"]
        assert palette.array(image).tolist() == expected.tolist()
    loaded.save(tmp_path / "ours")
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path / "ours", backend="pil")
    assert isinstance(again, ImageGPTImageProcessorPil)
    assert again(picture())["input_ids"][0].tolist() == palette.array(picture()).tolist()
    assert Palette.from_dict(palette.as_dict()).array(picture()).tolist() == palette.array(picture()).tolist()


def test_the_published_files_of_the_first_processor_open(saved: Path) -> None:
    file = saved / "preprocessor_config.json"
    clusters = json.loads(file.read_text())["clusters"]
    expected = manyheads.load(saved).preprocessing.array(picture())
    old = {"clusters": clusters, "do_normalize": True, "do_resize": True, "resample": 2, "size": SIDE}
    file.write_text(json.dumps({**old, "feature_extractor_type": "ImageGPTFeatureExtractor"}))
    assert manyheads.load(saved).preprocessing.array(picture()).tolist() == expected.tolist()


@pytest.mark.parametrize("keep", [0.0, 0.5, 35.5 / 36])
def test_a_greedy_completion_is_that_of_transformers(keep: float, saved: Path) -> None:
    writer = manyheads.load(saved)
    [completion] = writer.generate(picture(), keep=keep, temperature=0.0)
    ids = writer.preprocessing.array(picture())
    kept = int(keep * SIDE**2)
    start = torch.tensor([[COLORS, *ids[:kept].tolist()]])
    greedy = theirs().generate(start, max_length=SIDE**2 + 1, do_sample=False)[0, 1:].tolist()
    assert greedy[:kept] == ids[:kept].tolist()
    assert writer.preprocessing.array(completion).tolist() == greedy


def test_counts_of_the_published_models() -> None:
    counts = {"igpt/s": (76_420_096, 76_682_240), "igpt/m": (454_965_248, 455_489_536),
              "igpt/l": (1_362_127_872, 1_362_914_304)}  # fmt: skip
    for name, expected in counts.items():
        model = costs.preset_model(name)
        assert isinstance(model, IGPT)
        total = sum(tensor.numel() for tensor in model.parameters())
        assert (total - model.output.weight.numel(), total) == expected


def test_files_that_do_not_fit_are_refused(saved: Path) -> None:
    file = saved / "preprocessor_config.json"
    content, settings = json.loads(file.read_text()), json.loads((saved / "config.json").read_text())
    for changed, message in (
        ({"clusters": content["clusters"][1:]}, "has 11 colors and 36 pixels, the model 12 and 36"),
        ({"size": {"height": 7, "width": 7}}, "has 12 colors and 49 pixels"),
        ({"clusters": [[1.0, 2.0]]}, "a list of colors with 3 numbers each"),
        ({"clusters": [[1.0], [2.0, 3.0]]}, "inhomogeneous"),
    ):
        file.write_text(json.dumps({**content, **changed}))
        with pytest.raises(UserError, match=message):
            manyheads.load(saved)
    file.unlink()
    with pytest.raises(UserError, match="expected 'clusters', a list of colors"):
        manyheads.load(saved)
    classifier = transformers.ImageGPTForImageClassification(transformers.ImageGPTConfig(**settings))
    classifier.save_pretrained(saved)
    with pytest.raises(UserError, match="missing: lm_head.weight .* unexpected: score.weight"):
        directory.load(saved)


def test_k_means_finds_separate_clusters() -> None:
    random = np.random.default_rng(0)
    centers = np.array([[-0.8, 0, 0.5], [0.9, -0.4, 0], [0, 0.7, -0.9]], dtype=np.float32)
    members = random.integers(3, size=900)
    pixels = centers[members] + random.normal(0, 0.01, (900, 3)).astype(np.float32)
    found = k_means(pixels, 3, np.random.default_rng(1))
    order = nearest(centers, found)
    assert sorted(order) == [0, 1, 2]
    assert np.abs(found[order] - centers).max() < 0.01
    distinct = k_means(np.repeat(centers, 5, 0), 8, random)
    assert sorted(map(tuple, distinct.tolist())) == sorted(map(tuple, centers.tolist()))


def test_an_untrained_model_predicts_all_colors_alike() -> None:
    model = IGPT(IGPTConfig(vocab=5, width=8, layers=1, heads=2, max_positions=4)).eval()
    assert torch.equal(model(torch.tensor([[4, 0, 1]])), torch.zeros(1, 3, 4))
