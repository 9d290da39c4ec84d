"""Checking of images: each is decoded once, results are cached, and images in tables go to one memory-mapped file."""

import io
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.data.images import checking
from manyheads.data.images.checking import open_image
from manyheads.data.images.decoding import decode
from manyheads.data.images.files import Columns
from manyheads.data.images.labeled_images import read_images
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.store import Store
from tests.support.pictures import (
    GRAY,
    LABELS,
    PNGS,
    as_folder,
    as_idx,
    as_jsonl,
    as_parquet,
    encoded,
    many,
)  # fmt: skip


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list of images decoded so far. No decoded image is cached."""
    calls: list[bytes] = []

    def counting(data: bytes, *bounds: int) -> Any:
        calls.append(data)
        return decode(data, *bounds)

    monkeypatch.setattr(checking, "decode", counting)
    monkeypatch.setattr("manyheads.data.images.labeled_images.MAX_DECODED_BYTES", 0)
    return calls


@pytest.mark.parametrize("form", [as_folder, as_parquet, as_jsonl])
def test_checked_images_are_not_decoded_again(
    tmp_path: Path, form: Callable[[Path], Path], decoded: list[bytes]
) -> None:
    path, kept = form(tmp_path), tmp_path / "state" / "images"
    first = read_images(path, cache_folder=kept)
    assert len(decoded) == 4
    again = read_images(path, cache_folder=kept)
    assert len(decoded) == 4
    for one, other in zip(first.items, again.items, strict=True):
        assert one._replace(source=other.source) == other
        np.testing.assert_array_equal(np.asarray(open_image(one.source)), np.asarray(open_image(other.source)))


def test_changed_files_are_decoded_again(tmp_path: Path, decoded: list[bytes]) -> None:
    folder, kept = as_folder(tmp_path), tmp_path / "kept"
    (folder / "cat" / "bad.png").write_bytes(PNGS[0][:40])
    with pytest.raises(ValueError, match=r"bad\.png: "):
        read_images(folder, cache_folder=kept)
    with pytest.raises(ValueError, match=r"bad\.png: "):
        read_images(folder, cache_folder=kept)
    Image.fromarray(GRAY[0] // 2).save(folder / "cat" / "bad.png")
    repaired = read_images(folder, cache_folder=kept)
    assert len(repaired) == 5
    before = len(decoded)
    memory = kept / "checked.jsonl"
    memory.write_bytes(memory.read_bytes() + b'\n["cut sho')  # as a killed run leaves it
    assert read_images(folder, cache_folder=kept).keys == repaired.keys
    assert len(decoded) == before
    file = folder / "dog" / "deep" / "1.png"
    Image.fromarray(GRAY[1] // 2).save(file)
    os.utime(file, (1, 1))
    assert read_images(folder, cache_folder=kept).keys != repaired.keys
    assert len(decoded) == before + 1


def test_an_image_used_by_many_rows_is_decoded_once(tmp_path: Path, decoded: list[bytes]) -> None:
    """Once by each thread at the most: a large one, and one that cannot be read."""
    Image.new("L", (1200, 1000)).save(tmp_path / "large.png")
    (tmp_path / "bad.png").write_bytes(PNGS[0][:40])
    rows = [{"image": f"{name}.png", "label": label} for label in "ab" for name in ("large", "bad")]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 50))
    data = read_images(tmp_path / "train.jsonl", skip_bad_lines=True)
    assert (len(data), sum(data.skips.values())) == (100, 100)
    assert len(decoded) <= 2 * (os.cpu_count() or 1)


def test_an_oversized_image_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(2**31)  # no block of it is on the disk
    with pytest.raises(ValueError, match=r"a\.png: 2,147,483,648 bytes, too large for an image"):
        open_image(tmp_path / "a.png")


def test_an_unwritable_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: failed to write"):
        Store(tmp_path / "file")


def test_an_order_is_drawn_once_per_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from manyheads.data.images import loader
    from manyheads.data.images.augmentation import Augmentation, epoch_order

    calls: list[tuple[Any, ...]] = []

    def counting(*arguments: Any) -> Any:
        calls.append(arguments)
        return epoch_order(*arguments)

    monkeypatch.setattr(loader, "epoch_order", counting)
    data = read_images(many(tmp_path / "d"))
    batches = ImageLoader(data, ("a", "b"), Preprocessing(2), batch_items=7, augmentation=Augmentation()).epoch(3)
    assert len(list(batches)) == 9
    assert len(calls) == 1


def test_an_oversized_tensor_header_is_refused(tmp_path: Path) -> None:
    file = as_idx(tmp_path)
    file.write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">III", 4, 2**20, 2**20) + bytes(120))
    with pytest.raises(ValueError, match="expected 1 to 2,147,483,648 bytes, found 4 x 1,048,576 x 1,048,576 bytes"):
        read_images(file)


def test_a_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="pipe.png: not a regular file"):
        open_image(pipe)
    for suffix in (".jsonl", ".parquet", "-images-idx3-ubyte"):
        other = tmp_path / f"p{suffix}"
        os.mkfifo(other)
        with pytest.raises(ValueError, match="not a regular file"):
            read_images(other)
    folder = as_folder(tmp_path)
    os.mkfifo(folder / "cat" / "pipe.png")
    with pytest.raises(ValueError, match="pipe.png: not a regular file"):
        read_images(folder)


def test_54_megapixel_images_are_read_but_not_bombs() -> None:
    photograph = encoded(Image.new("L", (9000, 6000), 7), "JPEG")
    assert open_image(photograph).size == (9000, 6000)


@pytest.mark.parametrize("separator", [",", "\t"])
def test_rows_of_paths_and_labels_are_read(tmp_path: Path, separator: str) -> None:
    as_jsonl(tmp_path)
    file = tmp_path / ("c.csv" if separator == "," else "c.tsv")
    rows = [["label", "image"], *([label, f"i/{i}.png"] for i, label in enumerate(LABELS))]
    file.write_text("".join(f"{separator.join(row)}\n" for row in rows))
    data = read_images(file)
    assert (data.labels, data.keys) == (LABELS, read_images(as_parquet(tmp_path)).keys)
    with file.open("a") as more:
        more.write(f"cat{separator}i/none.png\n")
    with pytest.raises(ValueError, match=rf"{file.name}:6: .*none.png: no such image file"):
        read_images(file)


def test_columns_can_be_renamed(tmp_path: Path) -> None:
    file = as_parquet(tmp_path, image=[None] * 4, photo=PNGS, fine_label=[0, 1, 0, 1], label=["x"] * 4)
    data = read_images(file, names=("cat", "dog"), columns=Columns("photo", "fine_label"))
    assert data.labels == LABELS
    with pytest.raises(ValueError, match="expected a column 'img', found 'image', 'photo', .*columns.image="):
        read_images(file, columns=Columns("img"))


def test_damaged_table_pages_are_reported(tmp_path: Path) -> None:
    file = as_parquet(tmp_path, image=PNGS * 500, label=LABELS * 500)
    content = bytearray(file.read_bytes())
    content[100:4000] = bytes(3900)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.parquet.*; write the file again"):
        read_images(file)


def test_a_png_with_a_second_header_is_corrupt() -> None:
    made = io.BytesIO()
    Image.new("L", (4, 4)).save(made, "PNG")  # black: its rows are counted
    content = made.getvalue()
    for width, color in ((2**32 - 1, 0), (4, 5)):
        data = b"IHDR" + struct.pack(">IIBBBBB", width, width, 8, color, 0, 0, 0)
        chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
        with pytest.raises(ValueError, match="truncated or corrupt PNG image"):
            open_image(content[:8] + chunk + content[8:])


def test_an_error_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    (many(tmp_path) / "a" / "0.png").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"0\.png") as caught:
        read_images(tmp_path)
    assert not {*threading.enumerate()} - before, f"{caught.value} keeps threads"
