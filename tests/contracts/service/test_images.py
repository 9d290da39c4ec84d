"""Images in requests: size limits before decoding, and decoding of one at a time without blocking other models."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import manyheads
from manyheads import directory
from manyheads.data.images import decoding
from manyheads.data.text.text_faults import ItemError
from manyheads.service import computing
from manyheads.service.batching import Batcher
from manyheads.service.computing import image_decoder, run
from manyheads.service.server import Settings, service_of
from tests.support import services
from tests.support.services import Ask, asked_of, bert, drawn


def classifier(path: Path) -> Any:
    model = drawn("vit/ti4-32", image_size=32, patch=16, width=16, layers=1, heads=2, labels=("a", "b"))
    directory.save(path, model)
    return manyheads.load(path)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_images_in_memory_get_the_labels_of_their_files(tmp_path: Path) -> None:
    predictor = classifier(tmp_path / "m")
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)) for i in range(3)]
    found = run(predictor, predictor.classify_arrays, top=2)(
        [*image_decoder(predictor)([png(image) for image in images])]
    )
    for one, image in zip(found, images, strict=True):
        (label, other), expected = one, predictor.classify(image, top=2)
        assert [label.label, other.label] == [each.label for each in expected]
        assert label.probability == pytest.approx(expected[0].probability, abs=1e-6)


def test_an_oversized_image_is_refused_without_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, small, large = classifier(tmp_path / "m"), png(Image.new("P", (9, 9))), png(Image.new("P", (4001, 4000)))
    loaded, load = list[tuple[int, int]](), PngImageFile.load

    def counted(self: Any) -> Any:
        loaded.append(self.size)
        return load(self)

    monkeypatch.setattr(PngImageFile, "load", counted)
    with pytest.raises(ItemError, match="4,001 x 4,000 pixels exceed the maximum of 16,000,000") as told:
        image_decoder(predictor)([small, large])
    assert told.value.index == 1
    assert (4001, 4000) not in loaded


def encoded(*files: bytes) -> list[str]:
    return [base64.b64encode(file).decode() for file in files]


def test_images_are_reduced_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of other requests: what waits for the model is no larger than what it sees."""
    preprocessing = type(classifier(tmp_path / "m").preprocessing)
    service, order = service_of(Settings({"m": str(tmp_path / "m")})), list[str]()
    decode, frame = decoding.decode, preprocessing.framed
    submit, waiting = Batcher.submit, list[Any]()

    def opened(*how: Any) -> Any:
        order.append("open")
        return decode(*how)

    def reduced(*how: Any) -> Any:
        order.append("reduce")
        return frame(*how)

    def submitted(self: Batcher, key: Any, run: Any, items: list[Any], field: str, first: int = 0) -> Any:
        if self is not service.image_queue:
            waiting.extend(items)
        return submit(self, key, run, items, field, first)

    async def scene(ask: Ask) -> list[int]:
        images = encoded(*[png(Image.new("L", (500, 500)))] * 3)
        return [found.status_code for found in await asyncio.gather(*(ask(images=images) for _ in range(4)))]

    monkeypatch.setattr("manyheads.data.images.checking.decode", opened)
    monkeypatch.setattr(preprocessing, "framed", reduced)
    monkeypatch.setattr(Batcher, "submit", submitted)
    assert asked_of(service, scene) == [200] * 4
    assert order == ["open", "reduce"] * 12
    assert [each.nbytes for each in waiting] == [32 * 32 * 3] * 12


def test_requests_do_not_wait_for_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier(tmp_path / "see")
    models = {"see": tmp_path / "see", "tell": bert(tmp_path / "tell", head="sequence", labels=("a", "b"))}
    service = service_of(Settings({name: str(path) for name, path in models.items()}))
    decoding_it, told, real = threading.Event(), threading.Event(), computing.open_image

    def slow(*how: Any) -> Any:
        decoding_it.set()
        assert told.wait(60)
        return real(*how)

    async def scene(ask: Ask) -> tuple[Any, Any]:
        images = asyncio.create_task(ask(model="see", images=encoded(png(Image.new("L", (9, 9))), b"no image")))
        await asyncio.to_thread(decoding_it.wait, 60)
        other = await asyncio.wait_for(ask(model="tell", texts=["the cat"]), 30)
        told.set()
        return other, await images

    monkeypatch.setattr(computing, "open_image", slow)
    other, images = asked_of(service, scene)
    assert other.status_code == 200
    assert (images.status_code, images.json()["error"]["param"]) == (400, "images.1")


def test_images_in_progress_are_classified_by_their_model_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    classifier(path)
    service, real = service_of(Settings({"m": str(path)})), computing.open_image
    first = service.registry.of("m", None)

    def slow(*how: Any) -> Any:
        if service.registry.of("m", None) is first:
            (path / "config.json").touch()
            service.registry.reload()
            first.worker.close()
        return real(*how)

    async def scene(ask: Ask) -> Any:
        return await ask(images=encoded(png(Image.new("L", (9, 9)))))

    monkeypatch.setattr(computing, "open_image", slow)
    assert asked_of(service, scene).status_code == 200
    assert service.registry.of("m", None) is not first


def test_out_of_memory_is_not_a_corrupt_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    data = png(Image.new("RGB", (9, 9)))
    monkeypatch.setattr("PIL.ImageOps.exif_transpose", full)
    with pytest.raises(MemoryError):
        decoding.decode(data)


def test_objects_are_those_of_the_file_in_pixels_of_the_original(tmp_path: Path) -> None:
    path = services.detector(tmp_path / "m")
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (40 + 90 * i, 60), dtype=np.uint8)) for i in range(3)]

    async def scene(ask: Ask) -> list[Any]:
        found = await ask(images=encoded(*map(png, images)), threshold=0.0)
        return [found, await ask(images=["AAAA"]), await ask(images=[])]

    found, broken, empty = asked_of(service_of(Settings({"m": str(path)})), scene, "/objects")
    expected = manyheads.load(path).detect(images, threshold=0.0)
    for theirs, ours in zip(found.json()["results"], expected, strict=True):
        by_query = {each["query"]: [*each.values()] for each in theirs}
        assert len(by_query) == len(ours) == 9
        for each in ours:
            assert by_query[each.query][1:6] == pytest.approx(each[1:6], abs=1e-3)
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "images")
    assert empty.status_code == 400
