"""Numbers and several labels per item, read from tables of texts and images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labeled import label_sets, labels_of, read_labeled
from manyheads.data.sources.corpora import LabeledSource


def jsonl(file: Path, *labels: Any) -> Path:
    file.write_text("".join(json.dumps({"text": f"text {i}", "label": label}) + "\n" for i, label in enumerate(labels)))
    return file


def tsv(file: Path, *labels: str) -> Path:
    file.write_text("text\tlabel\n" + "".join(f"text {i}\t{label}\n" for i, label in enumerate(labels)))
    return file


def test_numbers_are_read_from_every_kind_of_cell(tmp_path: Path) -> None:
    data = read_labeled(jsonl(tmp_path / "a.jsonl", 1, 2.5, "3", "-1", "4e1", -0.25), target="regression")
    assert data.labels == ["1.0", "2.5", "3.0", "-1.0", "40.0", "-0.25"]
    assert labels_of(data.labels, data.target) == ("LABEL_0",)
    assert read_labeled(tsv(tmp_path / "a.tsv", "1", "2.5"), target="regression").labels == ["1.0", "2.5"]


@pytest.mark.parametrize("cell", ["high", "", "nan", float("nan"), float("inf"), None, True, [1.0]])
def test_other_cells_are_no_numbers(tmp_path: Path, cell: Any) -> None:
    with pytest.raises(ValueError, match=r"a\.jsonl:2: expected a number in 'label', found .*write a number"):
        read_labeled(jsonl(tmp_path / "a.jsonl", 1.0, cell), target="regression")


def test_several_labels_are_lists_or_have_a_separator(tmp_path: Path) -> None:
    data = read_labeled(jsonl(tmp_path / "a.jsonl", ["b", "a", "b"], [], "a|c", "", 7), target="multi-label")
    assert label_sets(data.labels, data.target) == [("a", "b"), (), ("a", "c"), (), ("7",)]
    assert labels_of(data.labels, data.target) == ("7", "a", "b", "c")
    table = read_labeled(tsv(tmp_path / "a.tsv", "0|2", "", "1"), target="multi-label", names=("x", "y", "z"))
    assert label_sets(table.labels, table.target) == [("x", "z"), (), ("y",)]
    with pytest.raises(ValueError, match=r"a label in 'label' contains '\|'"):
        read_labeled(jsonl(tmp_path / "b.jsonl", ["a|b", "c"]), target="multi-label")


def test_several_labels_are_never_read_by_accident(tmp_path: Path) -> None:
    assert read_labeled(tsv(tmp_path / "a.tsv", "a|b", "c")).labels == ["a|b", "c"]
    with pytest.raises(ValueError, match="'label' has a list of labels; to predict several labels, set target=multi-l"):
        read_labeled(jsonl(tmp_path / "a.jsonl", ["a"], ["b"]))


def test_a_column_of_pandas_has_two_classes(tmp_path: Path) -> None:
    """pandas writes a column of integers with gaps as 0.0 and 1.0."""
    assert read_labeled(tsv(tmp_path / "a.tsv", "0.0", "1.0")).labels == ["0", "1"]
    assert read_labeled(tsv(tmp_path / "a.tsv", "0.0", "1.0"), names=("no", "yes")).labels == ["no", "yes"]
    assert read_labeled(jsonl(tmp_path / "a.jsonl", 0.0, 1.0)).labels == ["0", "1"]
    # Models of earlier versions have the names 0.0 and 1.0.
    assert read_labeled(tsv(tmp_path / "a.tsv", "1.0", "0.0"), names=("0.0", "1.0")).labels == ["1.0", "0.0"]
    assert read_labeled(tsv(tmp_path / "a.tsv", "1.0", "0.0"), as_written=True).labels == ["1.0", "0.0"]


def test_a_mixture_of_numbers_and_words_is_refused(tmp_path: Path) -> None:
    file = tsv(tmp_path / "train.tsv", "1", "2", "good", "1")
    message = r"train\.tsv:4: the label 'good' is a word, but '1' in .*train\.tsv:2 is a number; expected one kind"
    with pytest.raises(ValueError, match=message):
        LabeledSource(data=str(file)).read()


def test_labels_that_training_lacks_are_named(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", ["a", "b"], ["a"], [])
    jsonl(tmp_path / "val.jsonl", ["a"], ["b", "x"])
    with pytest.raises(ValueError, match=r"val\.jsonl:2: label 'b\|x' does not occur in the training data"):
        LabeledSource(data=str(tmp_path), target="multi-label").read()


def test_images_have_numbers_or_several_labels(tmp_path: Path) -> None:
    for i in range(3):
        Image.fromarray(np.full((4, 4), 80 * i, np.uint8)).save(tmp_path / f"{i}.png")
    cells: dict[str, list[Any]] = {"regression": [0.5, 1, "2"], "multi-label": [["a", "b"], "b", []]}
    labels = {"regression": ["0.5", "1.0", "2.0"], "multi-label": ["a|b", "b", ""]}
    names = {"regression": ("LABEL_0",), "multi-label": ("a", "b")}
    for target, values in cells.items():
        rows = [{"image": f"{i}.png", "label": value} for i, value in enumerate(values)]
        (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = ImageSource(data=str(tmp_path / "all.jsonl"), target=target)  # type: ignore[arg-type]
        images = source.read_one(str(tmp_path / "all.jsonl"))
        assert images.labels == labels[target]
        assert images.names == names[target]
        assert source.count() == (2, names[target])  # without the image that is held out
        (tmp_path / "bad.jsonl").write_text(json.dumps({"image": "0.png", "label": None}))
        with pytest.raises(ValueError, match=r"bad\.jsonl:1: expected a (number|label) in 'label', found None"):
            source.read_one(str(tmp_path / "bad.jsonl"))
