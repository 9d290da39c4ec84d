"""Images: reduced one at a time, and bounded before they are decoded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import manyheads
from manyheads import directory
from manyheads.data.images import decoding
from manyheads.data.text_faults import ItemError
from manyheads.service.verbs import run
from tests.service.models import drawn


def classifier(path: Path) -> Any:
    model = drawn("vit/ti4-32", image_size=32, patch=16, width=16, layers=1, heads=2, labels=("a", "b"))
    directory.save(path, model)
    return manyheads.load(path)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_images_get_the_labels_that_their_files_get(tmp_path: Path) -> None:
    predictor = classifier(tmp_path / "m")
    dice = np.random.default_rng(0)
    images = [Image.fromarray(dice.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)) for i in range(3)]
    found = run(predictor, "images", top=2)([png(image) for image in images])
    for one, image in zip(found, images, strict=True):
        (label, other), expected = one, predictor.classify(image, top=2)
        assert [label.label, other.label] == [each.label for each in expected]
        assert label.probability == pytest.approx(expected[0].probability, abs=1e-6)


def test_a_large_image_is_told_and_never_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, small, large = classifier(tmp_path / "m"), png(Image.new("P", (9, 9))), png(Image.new("P", (4001, 4000)))
    loaded, load = list[tuple[int, int]](), PngImageFile.load

    def counted(self: Any) -> Any:
        loaded.append(self.size)
        return load(self)

    monkeypatch.setattr(PngImageFile, "load", counted)
    with pytest.raises(ItemError, match="4,001 x 4,000 pixels are more than the 16,000,000") as told:
        run(predictor, "images", top=1)([small, large])
    assert told.value.index == 1
    assert (4001, 4000) not in loaded


def test_each_image_is_reduced_before_the_next_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, order = classifier(tmp_path / "m"), list[str]()
    decode, preprocessing = decoding.decode, type(predictor.preprocessing)
    array = preprocessing.array

    def opened(*how: Any) -> Any:
        order.append("open")
        return decode(*how)

    def reduced(*how: Any) -> Any:
        order.append("reduce")
        return array(*how)

    monkeypatch.setattr("manyheads.data.images.checking.decode", opened)
    monkeypatch.setattr(preprocessing, "array", reduced)
    run(predictor, "images", top=1)([png(Image.new("L", (50, 50)))] * 3)
    assert order == ["open", "reduce"] * 3


def test_no_memory_is_no_corrupt_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    data = png(Image.new("RGB", (9, 9)))
    monkeypatch.setattr("PIL.ImageOps.exif_transpose", full)
    with pytest.raises(MemoryError):
        decoding.decode(data)
