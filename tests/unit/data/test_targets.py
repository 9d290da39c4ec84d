"""Numbers and several labels per item, read from tables of texts and images."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from manyheads.data.images.files import Columns as ImageColumns
from manyheads.data.images.labeled_images import read_images
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labeled import Columns, label_sets, labels_of, read_labeled, with_labels
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import LabeledSource
from manyheads.data.sources.report import labeled_report
from manyheads.tasks.targets import Target


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


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("['dog', 'water']", "dog|water"),
        ('["water", "dog"]', "dog|water"),
        ("('dog',)", "dog"),
        ("{'dog', 'water'}", "dog|water"),
        ("[1, 4]", "1|4"),
        ("[]", ""),
        ("", ""),
        (" dog | water ", "dog|water"),
        ("(dog)", "(dog)"),
    ],
)
def test_lists_in_a_text_are_read(tmp_path: Path, cell: str, labels: str) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), ("one", cell), ("two", "cat")])
    assert read_labeled(tmp_path / "a.csv", target="multi-label").labels == [labels, "cat"]
    rows = Rows("train", [("one", cell), ("two", "cat")], [("text", "label")])
    assert read_labeled(rows, target="multi-label").labels == [labels, "cat"]


@pytest.mark.parametrize(
    "cell", ["[1, 0, 0]", "1 0 1", "1,0,0", "0;1", "[True, True]", "[dog, water]", "['a' 'b']", "{'a': 1}"]
)
def test_other_notations_of_several_labels_are_refused(tmp_path: Path, cell: str) -> None:
    rows = Rows("train", [("one", "cat"), ("two", cell)], [("text", "label")])
    with pytest.raises(ValueError, match=r"train: row 2: .*separate the labels with \|"):
        read_labeled(rows, target="multi-label")


@pytest.mark.parametrize(
    "cells",
    [("dog, water", "cat"), ("dog;water", "cat;dog", "cow"), ("dog|cat", "dog", "dog, water", "cat", "cow", "pig")],
)
def test_combinations_with_another_separator_are_refused(tmp_path: Path, cells: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"found labels such as '(dog, water|cat;dog)'; separate the labels with \|"):
        read_labeled(tsv(tmp_path / "a.tsv", *cells), target="multi-label")
    for i in range(len(cells)):
        Image.new("L", (4, 4), 40 * i).save(tmp_path / f"{i}.png")
    rows = [json.dumps({"image": f"{i}.png", "label": cell}) for i, cell in enumerate(cells)]
    (tmp_path / "all.jsonl").write_text("\n".join(rows))
    with pytest.raises(ValueError, match=r"all\.jsonl: found labels such as '"):
        read_images(tmp_path / "all.jsonl", target="multi-label")
    known = ("cat", "dog", "water", "cow", "pig")
    with pytest.raises(ValueError, match=r"a\.tsv:\d: expected one of .*separate the labels with \|"):
        read_labeled(tsv(tmp_path / "a.tsv", *cells), target="multi-label", names=known)


def test_names_may_contain_a_comma(tmp_path: Path) -> None:
    assert (
        read_labeled(tsv(tmp_path / "a.tsv", "Arts, film|Law", "Law", "Tax"), target="multi-label").labels[0]
        == "Arts, film|Law"
    )
    names = ("Arts, film", "Law, tax")
    assert read_labeled(tsv(tmp_path / "a.tsv", *names), target="multi-label", names=names).labels == [*names]


ONE_HOT = Columns("comment", label=("toxic", "obscene"))


@pytest.mark.parametrize(
    ("cells", "labels"),
    [(("1", "0"), "toxic"), (("1.0", "true"), "obscene|toxic"), ((0, 0.0), ""), ((False, True), "obscene")],
)
def test_several_columns_have_a_flag_for_each_label(tmp_path: Path, cells: tuple[Any, Any], labels: str) -> None:
    frame = pd.DataFrame({"comment": ["one", "two"], "toxic": [cells[0]] * 2, "obscene": [cells[1]] * 2})
    frame.to_csv(tmp_path / "a.csv")
    for data in (tmp_path / "a.csv", Rows("train", frame.convert_dtypes(), [])):
        assert read_labeled(data, ONE_HOT, target="multi-label").labels == [labels] * 2


@pytest.mark.parametrize("cell", ["", "2", -1, 0.5, math.nan, "yes"])
def test_other_flags_are_refused(tmp_path: Path, cell: Any) -> None:
    frame = pd.DataFrame({"comment": ["one", "two"], "toxic": [type(cell)(1), cell], "obscene": [0, 1]})
    with pytest.raises(ValueError, match="train: row 2: expected 0 or 1 in 'toxic', found .*; write 0 or 1"):
        read_labeled(Rows("train", frame, []), ONE_HOT, target="multi-label")
    with pytest.raises(ValueError, match=r"train: row 1: expected a column 'toxic', found 'comment', 'obscene'"):
        read_labeled(Rows("train", frame.drop(columns="toxic"), []), ONE_HOT, target="multi-label")


def test_test_data_without_the_columns_of_labels_are_unlabeled(tmp_path: Path) -> None:
    rows = [f"text {i},{i % 2},{int(i % 3 == 0)}" for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["comment,toxic,obscene", *rows]))
    (tmp_path / "test.csv").write_text("id,comment\n1,hello\n")
    source = LabeledSource(data=str(tmp_path), columns=ONE_HOT, target="multi-label", names=("toxic", "obscene"))
    splits = source.read()
    assert splits.test is None
    assert (len(splits.validation), set(splits.validation.labels)) == (12, {"", "toxic", "obscene", "obscene|toxic"})


def test_a_column_without_any_flag_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"text {i},{i % 2},{int(i % 3 == 0)},0" for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["comment,toxic,obscene,threat", *rows]))
    columns = replace(ONE_HOT, label=("toxic", "obscene", "threat"))
    LabeledSource(data=str(tmp_path), columns=columns, target="multi-label").read()
    assert "no training item has the label 'threat': the model will not have it" in caplog.messages


def test_weights_of_items_are_read(tmp_path: Path) -> None:
    columns = Columns(weight="w")
    rows = [("one", "a", 2), ("two", "b", 0.5), ("three", "a", 0)]
    weighted = read_labeled(Rows("train", rows, [("text", "label", "w")]), columns)
    assert weighted.weights == [2.0, 0.5, 0.0]
    assert weighted.subset([2, 0]).weights == [0.0, 2.0]
    assert read_labeled(Rows("test", rows, [("text", "label", "x")]), columns).weights == [], "test data need none"
    for cell, fault in ((-1, "expected a weight of 0 or more in 'w', found -1"), ("x", "expected a number in 'w'")):
        with pytest.raises(ValueError, match=f"train: row 2: {fault}"):
            read_labeled(Rows("train", [("one", "a", "1"), ("two", "b", str(cell))], [("text", "label", "w")]), columns)
    tsv(tmp_path / "train.tsv", *["a", "b"] * 10)
    with pytest.raises(ValueError, match=r"train\.tsv: found no column 'w' with the weight of each item"):
        LabeledSource(data=str(tmp_path), columns=columns).read()
    source = LabeledSource()
    assert source.fingerprint(weighted, "train") != source.fingerprint(replace(weighted, weights=[]), "train")


def test_an_item_without_labels_is_counted(tmp_path: Path) -> None:
    frame = [("one", ["a", "b"]), ("two", None), ("three", math.nan), ("four", ""), ("five", {"b"})]
    data = read_labeled(Rows("train", frame, [("text", "label")]), target="multi-label")
    assert data.labels == ["a|b", "", "", "", "b"]
    report = labeled_report(SplitData(data, data, None))
    assert re.search(r"without a label +\S 3 \(60.0%\)", report)
    jsonl(tmp_path / "train.jsonl", *[["a"], ["b"], []] * 30)
    jsonl(tmp_path / "test.jsonl", None, None)
    assert LabeledSource(data=str(tmp_path), target="multi-label").read().test is None


def test_several_labels_are_never_read_by_accident(tmp_path: Path) -> None:
    assert read_labeled(tsv(tmp_path / "a.tsv", "a|b", "c")).labels == ["a|b", "c"]
    for cell in (["a"], "['a']"):
        with pytest.raises(ValueError, match="'label' has a list of labels; to predict several labels, set target=mul"):
            read_labeled(jsonl(tmp_path / "a.jsonl", cell, cell))


def test_a_column_of_pandas_has_two_classes(tmp_path: Path) -> None:
    """pandas writes a column of integers with gaps as 0.0 and 1.0."""
    assert read_labeled(tsv(tmp_path / "a.tsv", "0.0", "1.0")).labels == ["0", "1"]
    assert read_labeled(tsv(tmp_path / "a.tsv", "0.0", "1.0"), names=("no", "yes")).labels == ["no", "yes"]
    assert read_labeled(jsonl(tmp_path / "a.jsonl", 0.0, 1.0)).labels == ["0", "1"]
    # The model of another library may have the names 0.0 and 1.0.
    assert read_labeled(tsv(tmp_path / "a.tsv", "1.0", "0.0"), names=("0.0", "1.0")).labels == ["1.0", "0.0"]


def test_numbers_and_words_are_classes_but_scores_are_not(tmp_path: Path) -> None:
    splits = LabeledSource(data=str(tsv(tmp_path / "a.tsv", *["02", "NA", "01"] * 20))).read()
    assert labels_of(splits.train.labels, "classes") == ("01", "02", "NA")
    with pytest.raises(ValueError, match=r"b\.tsv:2: 'label' is a score, not a label: 3\.5 is not an integer"):
        LabeledSource(data=str(tsv(tmp_path / "b.tsv", "3.5", "NA", "2.5"))).read()


@pytest.mark.parametrize(
    ("values", "expected"),
    [([4, 1], "int"), ([True, False], "bool"), ([1.0, 2], "float"), (["1", "2"], "str"), (np.array([5, 1]), "int")],
)
def test_the_type_of_labels_is_known(values: Any, expected: str) -> None:
    rows = [(f"text {i}", value) for i, value in enumerate(values)]
    assert read_labeled(Rows("train", rows, [("text", "label")])).label_type == expected
    lists = [(text, [value]) for text, value in rows]
    several = read_labeled(Rows("train", lists, [("text", "label")]), target="multi-label")
    assert several.label_type == expected
    images = [(np.full((4, 4), 9, np.uint8), value) for value in values]
    assert read_images(Rows("train", images, [("image", "label")])).label_type == expected
    named = Rows("train", rows, [("text", "label")])
    assert read_labeled(named, names=[str(value) for value in values]).label_type == "str"


def test_a_list_of_labels_that_is_cut_says_so(tmp_path: Path) -> None:
    data = read_labeled(tsv(tmp_path / "val.tsv", "9", "0"))
    message = r"label '9' does not occur .*has labels 0, 1, 2, 3, 4, 5, 6, 7 and 1 more .*rows with --skip-bad-lines"
    with pytest.raises(ValueError, match=message):
        with_labels(data, [str(i) for i in range(9)])
    with pytest.raises(ValueError, match=r"has only the labels 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"):
        Target("classes", tuple(map(str, range(9)))).truth(data)
    memory = read_labeled(Rows("test", [("a", "9")], [("text", "label")]))
    with pytest.raises(ValueError, match=r"skip such images with skip_bad_lines=True"):
        with_labels(memory, ["1"], unit="images")


def test_labels_that_training_lacks_are_named(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", ["a", "b"], ["a"], [])
    jsonl(tmp_path / "val.jsonl", ["a"], ["b", "x"])
    with pytest.raises(ValueError, match=r"val\.jsonl:2: label 'b\|x' does not occur in the training data"):
        LabeledSource(data=str(tmp_path), target="multi-label").read()


def test_columns_of_flags_describe_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flags = [(1, 0, 0), (1, 1, 0), (0, 0, 0)]
    for i in range(3):
        Image.fromarray(np.full((4, 4), 80 * i, np.uint8)).save(tmp_path / f"{i}.png")
    frame = pd.DataFrame([(f"{i}.png", *row) for i, row in enumerate(flags)], columns=["image", "dog", "cat", "bird"])
    columns = ImageColumns(label=("dog", "cat", "bird"))
    for suffix, write in ((".csv", frame.to_csv), (".parquet", frame.to_parquet)):
        write(tmp_path / f"all{suffix}", index=False)
        source = ImageSource(data=str(tmp_path / f"all{suffix}"), target="multi-label", columns=columns)
        images = source.read_one(str(source.data))
        assert images.labels == ["dog", "cat|dog", ""]
    source.check_training(images)
    assert caplog.messages == ["no training item has the label 'bird': the model will not have it"]
    (tmp_path / "images").mkdir()
    frame.to_csv(tmp_path / "train.csv", index=False)
    listed = replace(source, data=str(tmp_path)).summary_lines(SplitData(images, images, None))[0]
    assert "train = train.csv" in listed
    assert "images" not in listed, "the table may name images in this folder"
    frame.assign(cat=["0", "1", "yes"]).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(ValueError, match=r"bad\.csv:4: expected 0 or 1 in 'cat', found 'yes'"):
        source.read_one(str(tmp_path / "bad.csv"))
    (tmp_path / "folder" / "dog").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"several columns\.label apply to tables"):
        source.read_one(str(tmp_path / "folder"))


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
        (tmp_path / "bad.jsonl").write_text(json.dumps({"image": "0.png", "label": None}))
        if target == "regression":
            with pytest.raises(ValueError, match=r"bad\.jsonl:1: expected a number in 'label', found None"):
                source.read_one(str(tmp_path / "bad.jsonl"))
        else:
            assert source.read_one(str(tmp_path / "bad.jsonl")).labels == [""]
