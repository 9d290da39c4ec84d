"""Training and classification of folders of images as users have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import manyheads
from manyheads import cli
from manyheads.data.images import checking
from manyheads.data.images.source import ImageSource
from manyheads.errors import UserError

TINY = {"preset": "vit/2-8", "model.channels": 3, "model.layers": 1, "training.steps": 1, "threads": 1}


def picture(path: Path, seed: int, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)).save(path)


def folder(path: Path, *splits: str, count: int = 8, side: int = 8) -> Path:
    for number in range(count):
        for place, split in enumerate(splits):
            picture(path / split / "ab"[number % 2] / f"{number}.png", place * 100 + number, side)
    return path


def test_test_images_without_class_folders_are_not_scored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = folder(tmp_path / "data", "train", "val")
    picture(data / "test" / "1.jpg", 1)
    with caplog.at_level("INFO"):
        result = manyheads.train("image-classification", {"data": str(data), **TINY}, out=tmp_path / "run")
    assert f"{data}/test: the test data have no labels, so they are not scored" in caplog.messages
    assert "test" not in result["data"]["items"]
    with pytest.raises(UserError, match="found no class folders"):
        ImageSource(data=str(data / "train"), test=str(data / "test")).read()


def test_skipped_images_are_named_and_listed(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", ".", count=60)
    for name in ("one", "two", "three", "four", "five"):
        (data / "a" / f"{name}.png").touch()
    (data / "empty").mkdir()
    with pytest.raises(UserError, match="or skip such images with --skip-bad-images"):
        ImageSource(data=str(data)).read()
    cache = tmp_path / "cache"
    cache.mkdir()
    for _ in range(2):
        train = ImageSource(data=str(data), skip_bad_lines=True, cache_folder=cache).read().train
        assert train.skips == {
            f"{data}: the image is empty (0 bytes) (a/five.png, a/four.png, a/one.png, a/three.png and 1 more; all are "
            f"listed in {cache}/skipped.txt)": 5,
            f"{data}: the class folder is empty (empty)": 1,
        }
        assert len((cache / "skipped.txt").read_text().split("\n")) == 1 + 6


def test_a_sample_reads_only_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder(tmp_path / "data", "train", "val", count=40)
    everything = ImageSource(data=str(data), seed=3).read()
    read: list[object] = []
    decode = checking._decode_checked

    def counting(*args: object) -> object:
        read.append(args[0])
        return decode(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(checking, "_decode_checked", counting)
    sampled = ImageSource(data=str(data), sample=10, seed=3).read()
    assert (len(sampled.train), len(read)) == (10, 10 + 40)
    assert sampled.train.keys == everything.sampled(10, 3).train.keys
    assert sampled.train.names == ("a", "b")


def test_a_model_that_sees_few_pixels_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = folder(tmp_path / "data", "train", "val", side=36)
    Image.new("RGB", (32, 32)).save(data / "train" / "a" / "small.png")
    manyheads.train("image-classification", {"data": str(data), **TINY}, out=tmp_path / "run")
    warning = (
        "8 of 9 training images have 36 x 36 pixels or more, but the model sees 8 x 8; to use more, set preset=vit/"
    )
    assert [message for message in caplog.messages if warning in message]
    caplog.clear()
    manyheads.train(
        "image-classification", {"data": str(data), **TINY, "model.image_size": 16}, out=tmp_path / "chosen"
    )
    assert not [message for message in caplog.messages if "to use more" in message]


def test_a_folder_of_images_is_classified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = folder(tmp_path / "data", "train", "val")
    manyheads.train("image-classification", {"data": str(data), **TINY}, out=tmp_path / "run")
    (data / "train" / "notes.txt").touch()
    assert cli.main(["classify", str(tmp_path / "run"), str(data / "train")]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == [
        str(data / "train" / "ab"[number % 2] / f"{number}.png") for number in (0, 2, 4, 6, 1, 3, 5, 7)
    ]
    (tmp_path / "none").mkdir()
    assert cli.main(["classify", str(tmp_path / "run"), str(tmp_path / "none")]) == 2
    assert "found no images in this folder" in capsys.readouterr().err


def test_a_color_model_starts_a_gray_one(tmp_path: Path) -> None:
    data = folder(tmp_path / "data", "train", "val")
    manyheads.train("image-classification", {"data": str(data), **TINY}, out=tmp_path / "run")
    settings = {"data": str(data), "training.steps": 1, "threads": 1, "model.channels": 1}
    manyheads.train("image-classification", settings, init=str(tmp_path / "run"), out=tmp_path / "gray")
    assert manyheads.load(str(tmp_path / "gray")).preprocessing.mean == (0.5,)
