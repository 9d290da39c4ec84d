"""Image splits, their report, and the resulting model input."""

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.data.images.labeled_images import digits, read_images
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.recorded import recorded_data
from tests.support.pictures import LABELS, PNGS, as_idx_gz, as_parquet, encoded, many, noise


def test_splits_of_a_directory_are_read(tmp_path: Path) -> None:
    many(tmp_path / "d" / "train")
    many(tmp_path / "d" / "test", 10, first=100)
    splits = ImageSource(data=str(tmp_path / "d")).read()
    assert splits.held_out == len(splits.validation) > 0
    assert len(splits.train) + len(splits.validation) == 60
    assert not set(splits.train.keys) & set(splits.validation.keys)
    assert splits.test is not None
    assert len(splits.test) == 10
    alone = ImageSource(data=str(tmp_path / "d" / "train")).read()
    assert alone.test is None
    assert alone.validation.keys == splits.validation.keys
    many(tmp_path / "d" / "val", 10, first=200)
    assert ImageSource(data=str(tmp_path / "d")).read().held_out == 0
    (tmp_path / "d" / "test" / "b").rename(tmp_path / "d" / "test" / "c")
    with pytest.raises(
        ValueError, match=r"label 'c' does not occur in the training data, which has labels a, b \(5 such images\)"
    ):
        ImageSource(data=str(tmp_path / "d")).read()
    test = ImageSource(data=str(tmp_path / "d"), skip_bad_lines=True).read().test
    assert test is not None
    assert (len(test), list(test.skips.values())) == (5, [5])


def test_mnist_files_are_read(tmp_path: Path) -> None:
    as_idx_gz(tmp_path)
    for kind in ("images-idx3", "labels-idx1"):
        data = (tmp_path / f"train-{kind}-ubyte.gz").read_bytes()
        (tmp_path / f"t10k-{kind}-ubyte.gz").write_bytes(data)
    splits = ImageSource(data=str(tmp_path)).read()
    assert splits.test is not None
    assert (len(splits.test), splits.train.names) == (4, ("cat", "dog"))


def test_one_label_or_one_image_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found only one label, 'cat'"):
        ImageSource(data=str(as_parquet(tmp_path, image=PNGS, label=["cat"] * 4))).read()
    with pytest.raises(ValueError, match="one distinct image cannot be split"):
        ImageSource(data=str(as_parquet(tmp_path, image=PNGS[:1] * 4, label=LABELS))).read()


def test_data_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    columns = {"image": [{"bytes": png, "path": None} for png in PNGS], "label": [0, 1, 0, 1]}
    rows = datasets.Dataset.from_dict(columns, features)
    asked: list[tuple[Any, ...]] = []

    def load(name: str, split: str | None = None, revision: str | None = None) -> Any:
        asked.append((name, split, revision))
        if name != "o/n":
            raise FileNotFoundError("no such\nthing")
        return rows if split else datasets.DatasetDict(train=rows, test=rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    splits = ImageSource(data="hub:o/n@main").read()
    assert asked == [("o/n", None, "main"), ("o/n", "train", "main"), ("o/n", "test", "main")]
    assert splits.test is not None
    assert splits.test.labels == LABELS
    assert read_images("hub:o/n#train").keys == splits.test.keys == read_images(as_parquet(tmp_path)).keys
    with pytest.raises(ValueError, match=r"hub:o/n: select one of the splits train, test, for example hub:o/n#train"):
        read_images("hub:o/n")
    with pytest.raises(ValueError, match=r"hub:x: failed to download \(no such\)"):
        ImageSource(data="hub:x").read()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'manyheads\[hub\]'"):
        read_images("hub:o/n")


def test_test_digits_do_not_depend_on_the_seed() -> None:
    first, second = digits(1), digits(2)
    assert first.test is not None
    assert second.test is not None
    assert first.test.keys == second.test.keys
    assert first.validation.keys != second.validation.keys
    assert sum(map(len, first.known.values())) == 1797
    assert 300 < len(first.test) < 420
    sets = [set(data.keys) for data in first.known.values()]
    assert not sets[0] & sets[1]
    assert not sets[2] & (sets[0] | sets[1])
    assert first.train.names == tuple("0123456789")
    assert max(np.asarray(first.train.image(i)).max() for i in range(9)) == 255


def test_the_report_counts_copies_and_contradictions(tmp_path: Path) -> None:
    jpegs = [encoded(Image.open(io.BytesIO(png)), "BMP") for png in PNGS]  # the same pixels otherwise encoded
    train = read_images(as_parquet(tmp_path, image=[*PNGS, jpegs[0]], label=[*LABELS, "dog"]))
    other = read_images(as_parquet(tmp_path, image=[jpegs[1], encoded(noise("RGB"))], label=["dog", "cat"]))
    report = ImageSource().report(SplitData(train, other, None))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in report.splitlines()]
    rows = {name: values for name, *values in filter(None, cells)}
    assert rows["images"] == ["5", "2"]
    assert rows["modes"] == ["L 5", "L 1, RGB 1"]
    assert rows["pixels (smallest / largest)"] == ["5 x 6", "5 x 6 / 7 x 5"]
    assert rows["label: dog"] == ["3 (60.0%)", "1 (50.0%)"]
    assert rows["duplicate images"] == ["1 (20.0%)", "0 (0.0%)"]
    assert rows["images of the training data"] == ["", "1 (50.0%)"]
    assert "1 of 2 validation images also occur in the training data" in report
    assert "1 training images occur again with another label" in report


def test_numeric_class_names_are_scored_on_test_data(tmp_path: Path) -> None:
    many(tmp_path / "train")
    many(tmp_path / "test", 10, first=100)
    for split in ("train", "test"):
        for old, new in (("a", "3"), ("b", "10")):
            (tmp_path / split / old).rename(tmp_path / split / new)
    many(tmp_path / "test", 4, first=200)  # of other labels
    source = ImageSource(data=str(tmp_path), skip_bad_lines=True)
    splits = source.read()
    again = recorded_data({"data": source.describe(splits)})
    assert again is not None
    test = again.read("test", labels=splits.train.names)
    assert splits.test is not None
    assert (test.labels, len(test)) == (splits.test.labels, 10)


def test_compressed_tables_are_split(tmp_path: Path) -> None:
    lines = [json.dumps({"image": f"{i}.png", "label": "ab"[i % 2]}) + "\n" for i in range(8)]
    for i in range(8):
        (tmp_path / f"{i}.png").write_bytes(encoded(noise("L")))
    for split, part in (("train", lines[:4]), ("val", lines[4:6]), ("test", lines[6:])):
        with gzip.open(tmp_path / f"{split}.jsonl.gz", "wt") as file:
            file.writelines(part)
    splits = ImageSource(data=str(tmp_path)).read()
    assert {name: len(images) for name, images in splits.known.items()} == {"train": 4, "validation": 2, "test": 2}
