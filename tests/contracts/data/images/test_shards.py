"""Images in shards: tar files in WebDataset's layout, and splits of several Parquet files."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.images.labeled_images import ImageData, read_images
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.source import ImageSource
from tests.support.pictures import LABELS, PNGS, as_folder, as_tar, many, tar_of


def in_folder(folder: Path) -> list[tuple[bytes, str]]:
    """Return the images of class folders with their labels, in reading order."""
    return [(path.read_bytes(), path.parent.name) for path in sorted(many(folder).rglob("*.png"))]


def write_shards(folder: Path, pictures: list[tuple[bytes, str]], kind: str) -> None:
    """Write shards of unequal size, named train-0000N-of-00003."""
    folder.mkdir()
    for number, part in enumerate((pictures[:7], pictures[7:8], pictures[8:])):
        file = folder / f"train-{number:05d}-of-00003.{kind}"
        if kind == "tar":
            named = ((f"{n:04d}", png, label) for n, (png, label) in enumerate(part))
            tar_of(file, {f"{n}.{k}": c for n, png, label in named for k, c in (("png", png), ("cls", label.encode()))})
        else:
            columns = {"image": [{"bytes": png, "path": None} for png, _ in part], "label": [name for _, name in part]}
            pyarrow.parquet.write_table(pyarrow.table(columns), file)


def batches(data: ImageData, workers: int = 0, world: int = 1) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Return the images of each rank."""
    made = []
    loader = ImageLoader(
        data, data.names, Preprocessing.of_channels(4, 1, mean=(0.5,), std=(0.5,)), batch_items=9, workers=workers
    )
    for rank in range(world):
        epoch = loader.epoch()
        parts = [epoch.part(i, rank, world)[0] for i in range(len(epoch))]  # type: ignore[attr-defined]
        made.append([(batch.images, batch.labels) for batch in parts])
    loader.close()
    return made


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_shards_belong_to_their_split(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.data.images.labeled_images.MAX_DECODED_BYTES", 0)  # so that the workers decode
    write_shards(tmp_path / "shards", in_folder(tmp_path / "pictures"), kind)
    source = ImageSource(data=str(tmp_path / "shards"))
    shards, whole = source.read(), ImageSource(data=str(tmp_path / "pictures")).read()
    assert (shards.train.keys, shards.train.labels) == (whole.train.keys, whole.train.labels)
    assert (shards.validation.keys, shards.held_out) == (whole.validation.keys, whole.held_out)

    (expected,) = batches(whole.train)
    for workers in (0, 2):
        (found,) = batches(shards.train, workers)
        for of_shards, of_folder in zip(found, expected, strict=True):
            np.testing.assert_array_equal(of_shards[0], of_folder[0])
            np.testing.assert_array_equal(of_shards[1], of_folder[1])
    for parts, of_folder in zip(zip(*batches(shards.train, world=3), strict=True), expected, strict=True):
        by_rank = [parts[row % 3][0][row // 3] for row in range(len(of_folder[0]))]
        assert sorted(image.tobytes() for image in by_rank) == sorted(image.tobytes() for image in of_folder[0])


def test_a_tar_is_read_in_place_and_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.data.images.labeled_images.MAX_DECODED_BYTES", 0)
    tar, kept = as_tar(tmp_path), tmp_path / "kept"
    kept.mkdir()
    first = read_images(tar, cache_folder=kept)
    assert sum(file.stat().st_size for file in kept.iterdir() if file.name != "checked.jsonl") == 0  # no copy
    monkeypatch.setattr("manyheads.data.images.checking.decode", None)
    assert read_images(tar, cache_folder=kept).keys == first.keys
    monkeypatch.undo()
    os.truncate(tar, 1024)
    with pytest.raises(ValueError, match=r"c\.tar: .*has become shorter since it was read"):
        first.image(3)


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"0.png": PNGS[0]}, r"c\.tar:0: no label; add a \.cls or \.json file with the name"),
        ({"0.cls": b"cat"}, r"c\.tar:0: expected one image with this name, found none"),
        (
            {"0.png": PNGS[0], "0.jpg": PNGS[1], "0.cls": b"cat"},
            r"c\.tar:0: expected one image with this name, found 2",
        ),
        ({"0.png": PNGS[0], "0.cls": b"\xff"}, r"c\.tar:0: unreadable \.cls file"),
        ({"0.png": PNGS[0], "0.cls": b"a" * 5000}, r"c\.tar:0: expected a \.cls file of at most 4,096 bytes"),
        ({"0.png": PNGS[0], "0.cls": b"-1"}, r"c\.tar:0: the label -1 means unlabeled"),
        (
            {"0.png": PNGS[0], "0.json": b'{"class": 1}'},
            r"c\.tar:0: the \.json file has no key 'label'; .*columns\.label=",
        ),
        ({"0.png": PNGS[0], "0.json": b"[" * 99_999}, r"c\.tar:0: unreadable \.json file"),
        ({"0.png": PNGS[0][:40], "0.cls": b"cat"}, r"c\.tar:0: a PNG image with a truncated"),
        ({"/0.png": PNGS[0], "/0.cls": b"cat"}, r"c\.tar:/0: the path points outside of the archive"),
        ({"a/../../0.png": PNGS[0]}, r"c\.tar:a/\.\./\.\./0: the path points outside of the archive"),
    ],
)
def test_a_malformed_item_is_reported_or_skipped(tmp_path: Path, files: dict[str, bytes], fault: str) -> None:
    tar = tar_of(tmp_path / "c.tar", {**files, "good.png": PNGS[1], "good.cls": b"dog"})
    with pytest.raises(ValueError, match=fault):
        read_images(tar)
    found = read_images(tar, skip_bad_lines=True)
    assert (found.labels, sum(found.skips.values())) == (["dog"], 1)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "c.tar", "w") as tar:
        link = tarfile.TarInfo("0.png")
        link.type, link.linkname = kind, "/etc/hostname"
        tar.addfile(link)
        label = tarfile.TarInfo("0.cls")
        label.size = 3
        tar.addfile(label, io.BytesIO(b"cat"))
    with pytest.raises(ValueError, match=r"c\.tar:0: (a link|not a regular file) in a tar file; store the file itself"):
        read_images(tmp_path / "c.tar")


def test_a_truncated_or_overwritten_tar_is_reported(tmp_path: Path) -> None:
    good = as_tar(tmp_path).read_bytes()
    end = len(good.rstrip(b"\0"))
    headers = range(0, end, tarfile.BLOCKSIZE)
    for length in [0, 100, *headers[1:]]:
        (tmp_path / "c.tar").write_bytes(good[:length])
        with pytest.raises(ValueError, match=r"c\.tar: not a tar file, or damaged"):
            read_images(tmp_path / "c.tar", skip_bad_lines=True)
    for size in (b"77777777777\0", b"\x80" + b"\0" * 3 + b"\x7f" * 8, b"\xff" * 12):  # of a tebibyte; larger; negative
        harmed = bytearray(good)
        harmed[124:136] = size
        harmed[148:156] = b" " * 8
        harmed[148:156] = b"%06o\0 " % sum(harmed[:512])
        (tmp_path / "c.tar").write_bytes(harmed)
        with pytest.raises(ValueError, match=r"c\.tar: not a tar file, or damaged"):
            read_images(tmp_path / "c.tar")


def test_corpora_are_joined_by_commas(tmp_path: Path) -> None:
    joined = read_images(f"{as_tar(tmp_path)},{as_folder(tmp_path)}")
    assert joined.labels == [*LABELS, "cat", "cat", "dog", "dog"]
    with pytest.raises(FileNotFoundError, match=r"missing\.tar: no such file"):
        read_images(f"{tmp_path / 'c.tar'},{tmp_path / 'missing.tar'}")
