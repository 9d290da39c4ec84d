"""Figures of vision papers from trained models: arrows, centers, mean maps, and channel weights by `attend`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import cli, directory
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.models.conv_attention import ConvAttention, ConvAttentionConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.nonlocal_net import NonLocalConfig, NonLocalNet
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.selective_kernel import SKNet, SKNetConfig
from papers.command import run
from papers.conv_attention.__main__ import main as conv_attention
from papers.nonlocal_net.__main__ import main as nonlocal_net
from papers.nonlocal_net.arrows import strongest_arrows
from papers.universal.digit_strings import digit_tokenizer

SIZES: dict[str, Any] = {
    "labels": ("cat", "dog"), "image_size": 8, "block": "basic", "depths": (2, 1), "widths": (8, 16), "stem": "3x3",
    "stem_width": 8,
}  # fmt: skip
CONV = ConvAttentionConfig(labels=("cat", "dog"), image_size=8, width=8, layers=3, heads=4, feed_forward=8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models, with a folder of images of two classes, two clips and a single image."""
    torch.manual_seed(0)
    here = tmp_path_factory.mktemp("models")
    half = Preprocessing(8, mean=(0.5,) * 3, std=(0.5,) * 3).as_dict()
    for name, model in {
        "se": ResNet(ResNetConfig(**SIZES, squeeze=2)),
        "sk": SKNet(SKNetConfig(**SIZES)),
        "plain": ResNet(ResNetConfig(**SIZES)),
        "nonlocal": NonLocalNet(NonLocalConfig(**SIZES, stages=(1, 2), every=1)),
        "both": NonLocalNet(NonLocalConfig(**SIZES, stages=(1,), every=1, squeeze=2)),
        "quadratic": ConvAttention(CONV),
        "content": ConvAttention(replace(CONV, kind="content")),
    }.items():
        for parameter in model.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.5)
        directory.save(here / name, model, preprocessing=half)
    for epoch in (10, 0, 2):
        directory.save(here / "quadratic" / "kept" / f"epoch-{epoch}", ConvAttention(CONV), preprocessing=half)
    random = np.random.default_rng(0)
    frames = []
    for label in ("cat", "dog"):
        (here / "images" / label).mkdir(parents=True)
        for number in range(3):
            frames.append(Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8)))
            frames[-1].save(here / "images" / label / f"{number}.png")
    first, *others = [frame.copy() for frame in frames[:4]]
    first.save(here / "clip.tiff", save_all=True, append_images=others)
    (here / "frames").mkdir()
    for number, frame in enumerate(frames[:4]):
        frame.save(here / "frames" / f"{number}.png")
    frames[0].save(here / "a.png")
    return here


COMMANDS = {"conv_attention": conv_attention, "nonlocal_net": nonlocal_net}


def typed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run `python -m papers.NAME ...` or `manyheads attend ...`; return the exit status, stdout and stderr."""
    name, *words = map(str, arguments)
    capsys.readouterr()
    status = cli.main([name, *words]) if name == "attend" else run(COMMANDS[name], words)
    return status, *capsys.readouterr()


def texts(file: Path) -> list[str]:
    return re.findall("<!-- (.*?) -->", file.read_text())


def test_attend_shows_the_channel_weights_of_an_image(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed(capsys, "attend", models / "se", models / "a.png") == (0, "channels.png\n", "")
    assert Path("channels.png").read_bytes().startswith(b"\x89PNG")
    assert typed(capsys, "attend", models / "se", models / "a.png", "--out", "w.npz")[0] == 0
    se = manyheads.load(models / "se")
    image = torch.from_numpy(se.preprocessing.array(Image.open(models / "a.png")))[None]
    given = []
    se.model.stages[1].blocks[0].squeeze.excite.register_forward_hook(lambda *call: given.append(call[2].sigmoid()))
    se.model(image)
    with np.load("w.npz") as found:
        np.testing.assert_allclose(found["channels/2"], given[0].detach().numpy(), atol=1e-6)
        assert "channels/3" not in found
    assert typed(capsys, "attend", models / "se", models / "a.png", "--layers", 0, "--out", "w.svg")[0] == 0
    titles = [text for text in texts(Path("w.svg")) if text.startswith("stage")]
    assert len(titles) == 1
    assert titles[0].startswith("stage 1, block 1: 8 channels")
    # an SKNet has a panel for the last branch of each stage
    assert typed(capsys, "attend", models / "sk", models / "a.png", "--out", "k.svg")[0] == 0
    titles = [text for text in texts(Path("k.svg")) if text.startswith("stage")]
    assert [title.partition(":")[0] for title in titles] == ["stage 1, block 2, branch 2", "stage 2, block 1, branch 2"]
    # a model with attention shows its attention maps
    assert typed(capsys, "attend", models / "both", models / "a.png", "--out", "maps.npz")[0] == 0
    with np.load("maps.npz") as found:
        assert found["self/0"].shape == (1, 1, 64, 16)


def test_every_figure_is_drawn(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    maps, centers = ("conv_attention", "maps"), ("conv_attention", "centers", models / "quadratic")
    arrows = ("nonlocal_net", models / "nonlocal")
    for arguments, expected in (
        (("attend", models / "se", models / "images"), {"images, 6 images", "cat", "dog", "all"}),
        (("attend", models / "se", models / "a.png", models / "frames/1.png"), {"2 images", "a.png", "1.png"}),
        ((*maps, models / "content", models / "images"), {"content, mean over 6 images", "head 3", "layer 2"}),
        ((*maps, models / "content", models / "images", "--images", 3), {"content, mean over 3 images"}),
        ((*maps, models / "quadratic", models / "a.png", "--at", "0,7"), {"quadratic, one image"}),
        (centers, {"quadratic", "layer 0", "layer 2", "head 3"}),
        ((*centers, "--layer", -1), {"quadratic, layer 2", "epoch 0", "epoch 2", "epoch 10"}),
        ((*arrows, models / "a.png", "--at", "3,4"), {"nonlocal: a.png"}),
        ((*arrows, models / "clip.tiff"), {"nonlocal: clip.tiff", "frame 0", "frame 3"}),
        ((*arrows, models / "frames", "--frames", 2, "--layer", 0), {"frame 0", "frame 3"}),
    ):
        assert typed(capsys, *arguments, "--out", "f.svg") == (0, "f.svg\n", ""), arguments
        assert expected <= set(texts(Path("f.svg"))), (arguments, texts(Path("f.svg")))
    assert typed(capsys, *centers) == (0, "centers.png\n", "")


def test_arrows_are_the_20_strongest_of_the_clip(models: Path, tmp_path: Path) -> None:
    net = manyheads.load(models / "nonlocal")
    clip = torch.stack([
        torch.from_numpy(net.preprocessing.array(Image.open(models / "frames" / f"{n}.png"))) for n in range(4)
    ], 1)[None]  # fmt: skip
    drawn = strongest_arrows(net.model, clip, (2, 3, 5))
    with torch.no_grad(), manyheads.record(net.model, layers=[-1]) as maps:
        net.model(clip)
    ((whole,),) = maps.values()
    row = whole[0, 0, (2 * 4 + 1) * 4 + 2]  # of frame 2, cell (1, 2) of 4 x 4
    order = sorted(range(len(row)), key=lambda key: -float(row[key]))[:20]
    assert torch.equal(drawn.weights, row[order])
    # keys are 2 x 2 a frame: their middles, in pixels
    assert {tuple(end) for end in drawn.ends.tolist()} == {
        (key // 4, 2.0 + 4 * (key // 2 % 2), 2.0 + 4 * (key % 2)) for key in order
    }


def test_wrong_models_and_inputs_are_one_line(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = digit_tokenizer()
    gpt = GPTConfig(vocab=words.get_vocab_size(), width=8, heads=2, layers=1, max_positions=8)
    directory.save(tmp_path / "gpt", GPT(gpt), words)
    directory.save(tmp_path / "unkept", ConvAttention(CONV))
    image, maps, centers = models / "a.png", ("conv_attention", "maps"), ("conv_attention", "centers")
    for arguments, message in (
        (("nonlocal_net", models / "se", image), "no attention layer -1; valid are none"),
        ((*centers, models / "content"), "have no centers: expected quadratic positional attention"),
        ((*maps, models / "plain", image), "expected attention as convolution, found ResNet"),
        ((*centers, models / "quadratic", "--layer", 3), "layer 3 does not exist: valid are 0 to 2"),
        (
            (*centers, tmp_path / "unkept", "--layer", 0),
            "no saved epochs in kept/: train with training.keep_every=1",
        ),
        (("nonlocal_net", models / "nonlocal", image, "--at", "0,1,1"), "expected one image and (y, x), or one clip"),
        (("nonlocal_net", models / "nonlocal", image, "--at", "8,1"), "(8, 1) is outside"),
        (("nonlocal_net", tmp_path / "gpt", image), "expected a model of images, found LanguageModel"),
        ((*maps, models / "content", image, "--at", "1,2,3"), "expected --at Y,X, a pixel of an image"),
        (("attend", models / "se", models / "frames"), "frames: found no test data like "),
        (("attend", models / "se", image, "--heads", 0), "--heads applies to attention maps"),
        (("attend", models / "se", image, "--words"), "--words applies to attention maps"),
        (("attend", models / "se", image, "--out", tmp_path / "a.html"), "because channel weights have no page"),
        (("attend", models / "plain", image), "plain has no attention layers"),
    ):
        status, out, error = typed(capsys, *arguments)
        assert (status, out, error.count("\n")) == (2, "", 1), (arguments, error)
        assert message in error, (message, error)
    with pytest.raises(SystemExit):
        typed(capsys, "nonlocal_net", models / "nonlocal", image, "--at", "x")
    assert "expected Y,X or, in a clip, T,Y,X" in capsys.readouterr().err
