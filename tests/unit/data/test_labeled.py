"""Labeled texts in every format; each fault is reported by file and line."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.labeled import Columns, Labeled, label_order, read_labeled
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import LabeledSource

TEXTS, LABELS = ['He said "no", twice.', "Zwei\u2028Katzen\x0b.", "Ö\x85 3"], ["bad", "good", "bad"]


def read_labeled_splits(data: Path, **settings: Any) -> SplitData[Labeled]:
    return LabeledSource(data=str(data), **settings).read()


def write(file: Path, text: str | bytes) -> Path:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def as_tsv(folder: Path) -> Path:
    rows = "".join(f"{i}\t{text}\t{label}\n" for i, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)))
    return write(folder / "c.tsv", "\ufeffid\ttext\tlabel\n" + rows)


def as_csv(folder: Path) -> Path:
    with (folder / "c.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("label", "sentence"), *zip(LABELS, TEXTS, strict=True)])
    return folder / "c.csv"


def as_jsonl(folder: Path) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
    return write(folder / "c.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")


def as_parquet(folder: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"label": LABELS, "text": TEXTS}), folder / "c.parquet")
    return folder / "c.parquet"


@pytest.mark.parametrize("form", [as_tsv, as_csv, as_jsonl, as_parquet])
def test_every_form_gives_equal_rows(tmp_path: Path, form: Callable[[Path], Path]) -> None:
    labeled = read_labeled(form(tmp_path))
    assert (labeled.texts, labeled.labels, labeled.second_texts, labeled.skips) == (TEXTS, LABELS, None, {})
    assert labeled.inputs == TEXTS


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("sentence1\tsentence2\tlabel", None),
        ("#1 String\t#2 String\tQuality", None),
        ("premise\thypothesis\tlabel", None),
        ("one\ttwo\tclass", Columns("one", "two", "class")),
    ],
)
def test_pairs_are_found_by_column_names(tmp_path: Path, header: str, columns: Columns | None) -> None:
    file = write(tmp_path / "c.tsv", f"{header}\na b\tc\t1\nd\te\t0\n")
    labeled = read_labeled(file, columns, names=("no", "yes"))
    assert (labeled.texts, labeled.second_texts, labeled.labels) == (["a b", "d"], ["c", "e"], ["yes", "no"])
    assert labeled.inputs == ["a b\tc", "d\te"]


def test_quoted_cells_span_lines_and_rows_keep_their_line_numbers(tmp_path: Path) -> None:
    file = write(tmp_path / "c.csv", 'text,label\n"two\nlines",a\nlast,b\n')
    labeled = read_labeled(file)
    assert labeled.texts == ["two\nlines", "last"]
    assert [labeled.place(i).rpartition(":")[2] for i in range(2)] == ["2", "4"]


def test_a_number_with_too_many_digits_is_not_a_label(tmp_path: Path) -> None:
    file = write(tmp_path / "c.tsv", f"text\tlabel\na\t1\nb\t{'9' * 5000}\n")
    with pytest.raises(ValueError, match=r"c\.tsv:3: label 9{20}\.\.\. has 5,000 digits"):
        read_labeled(file)
    assert read_labeled(file, skip_bad_lines=True).labels == ["1"]


def test_numbers_are_labels(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [1, 0]}), tmp_path / "c.parquet")
    assert read_labeled(tmp_path / "c.parquet").labels == ["1", "0"]
    assert label_order(["10", "9", "1", "9"]) == ("1", "9", "10")
    assert label_order(["b", "10", "a"]) == ("10", "a", "b")


def test_a_missing_label_does_not_invalidate_the_others(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"], "label": [0.0, None, 1.0]}), file)
    with pytest.raises(ValueError, match=r"a\.parquet:2: expected a label in 'label', found None"):
        read_labeled(file)
    assert read_labeled(file, skip_bad_lines=True).labels == ["0", "1"]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "label": [0.5]}), file)
    with pytest.raises(ValueError, match=r"a\.parquet:1: 'label' is a score, not a label: 0\.5"):
        read_labeled(file)


SCORED = [(f"text {i}", score) for i, score in enumerate(("5.000", "3.52", "0.0", ".25", "1e-3"))]


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl", "numbers.jsonl", "parquet", "text.parquet"])
def test_scores_are_not_classes(tmp_path: Path, form: str) -> None:
    """Not even those that are whole, where the others are left out on request."""
    file = tmp_path / f"scores.{form}"
    texts, scores = zip(*SCORED, strict=True)
    if form.endswith("parquet"):
        labels = scores if form.startswith("text") else tuple(map(float, scores))
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": labels}), file)
    elif form.endswith("jsonl"):
        labels = tuple(map(float, scores)) if form.startswith("numbers") else scores
        rows = ({"text": text, "label": label} for text, label in zip(texts, labels, strict=True))
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        between = "," if form == "csv" else "\t"
        file.write_text("".join(f"{text}{between}{label}\n" for text, label in [("text", "label"), *SCORED]))
    line = 3 if form in ("tsv", "csv") else 2
    with pytest.raises(
        ValueError,
        match=rf"{file.name}:{line}: 'label' is a score, not a label: 3\.52 is not an integer; to "
        r"predict a number, set target=regression.*columns\.label=NAME",
    ):
        read_labeled(file)
    with pytest.raises(ValueError, match=rf"{file.name}:{line}: 3 labels are not integers; to predict a number"):
        read_labeled(file, skip_bad_lines=True)


@pytest.mark.parametrize("labels", [("v1.5", "v2.5"), ("1.2.3", "1.2.4"), ("10", "9"), ("3,5", "x")])
def test_whole_numbers_and_names_with_digits_are_classes(tmp_path: Path, labels: tuple[str, str]) -> None:
    file = write(tmp_path / "c.tsv", f"text\tlabel\na\t{labels[0]}\nb\t{labels[1]}\n")
    assert read_labeled(file).labels == [*labels]


@pytest.mark.parametrize(
    ("left", "name", "content", "message"),
    [
        ("az", "c.tsv", "text\tlabel\na\t1\nb\n", r"c\.tsv:3: expected 2 columns as in the header, found 1; "
                                                  r"separate cells"),
        ("az", "c.tsv", "text\tlabel\na\t1\n \t1\n", r"c\.tsv:3: 'text' is blank"),
        ("z", "c.tsv", "text\tlabel\na\t\n", r"c\.tsv:2: expected a label in 'label', found ''"),
        ("az", "c.tsv", b"text\tlabel\na\t1\n\xff\t1\n", r"c\.tsv:3: invalid UTF-8"),
        ("az", "c.csv", b"text,label\na,1\n\xff,1\n", r"c\.csv:3: invalid UTF-8"),
        ("az", "c.csv", "text,label\na,1\nb\0,1\n", r"c\.csv:3: contains a NUL byte; remove it"),
        ("az", "c.tsv", "text\tlabel\na\t1\nb\0\t1\n", r"c\.tsv:3: contains a NUL byte; remove it"),
        ("z", "c.csv", 'text,label\n"a"b,1\n', r"c\.csv:2: invalid CSV"),
        ("acz", "c.csv", 'text,label\na,1\n"b,1\nc,1\n', r"c\.csv:3: invalid CSV"),
        ("z", "c.csv", "text,label\na,b,1\n", r"c\.csv:2: expected 2 columns as in the header, found 3; quote"),
        ("az", "c.jsonl", '{"text": "a", "label": 1}\n{"text": \n', r"c\.jsonl:2: invalid JSON"),
        ("az", "c.jsonl", '{"text": "a", "label": 1}\n[1]\n', r"c\.jsonl:2: expected a JSON object, found list"),
        ("az", "c.jsonl", '{"text": "a", "label": 1}\n{"text": 3, "label": '
                          '1}\n', r"c\.jsonl:2: expected text in 'text', found 3"),
        ("az", "c.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": '
                          '0.5}\n', r"c\.jsonl:2: 'label' is a score, not a label: 0\.5"),
        ("az", "c.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": -1}\n',
                          r"c\.jsonl:2: the label -1 means unlabeled; .* if -1 is a class, write a name instead"),
    ],
)  # fmt: skip
def test_faults_are_reported_with_file_and_line_or_skipped(
    tmp_path: Path, left: str, name: str, content: str | bytes, message: str
) -> None:
    file = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message + ".*--skip-bad-lines") as error:
        read_labeled(file)
    assert "\n" not in str(error.value)
    more = {"c.tsv": "z\t1\n", "c.csv": "z,1\n", "c.jsonl": '{"text": "z", "label": 1}\n'}[name]
    file.write_bytes(file.read_bytes() + more.encode())
    labeled = read_labeled(file, skip_bad_lines=True)
    assert (labeled.texts, sum(labeled.skips.values())) == ([*left], 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "c.tsv",
            "body\tlabel\na\t1\n",
            r"c\.tsv:2: found no column for the text .* among 'body', 'label'; .*columns\.text",
        ),
        ("c.tsv", "text\tclass\na\t1\n", r"c\.tsv:2: found no column for `label`"),
        ("c.tsv", "", "the file is empty"),
        ("c.tsv", "text\tlabel\n", "no usable row found"),
        ("c.parquet", "nothing", "not a Parquet file"),
        ("c.txt", "a", r"expected a \.tsv, \.csv, \.jsonl, \.json, \.parquet file"),
    ],
)
def test_missing_files_are_reported(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_labeled(write(tmp_path / name, content), skip_bad_lines=True)


def test_missing_columns_and_invalid_names_are_rejected(tmp_path: Path) -> None:
    file = write(tmp_path / "c.tsv", "text\tlabel\na\t7\n")
    with pytest.raises(ValueError, match=r"c\.tsv:2: expected a column 'body', found 'text', 'label'"):
        read_labeled(file, Columns(text="body"))
    with pytest.raises(ValueError, match=r"c\.tsv:2: expected one of the labels no, yes \(0 to 1\), found '7'"):
        read_labeled(file, names=("no", "yes"))
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_labeled(tmp_path / "absent.tsv")


def splits(folder: Path, **files: str) -> Path:
    for name, rows in files.items():
        write(folder / f"{name}.tsv", "text\tlabel\n" + rows)
    return folder


def test_texts_are_held_out_without_validation_files(tmp_path: Path) -> None:
    rows = "".join(f"text {i % 150}\t{i % 2}\n" for i in range(300))
    labeled = read_labeled_splits(splits(tmp_path, train=rows, test="new\t1\n"))
    assert labeled.held_out
    assert labeled.test is not None
    assert labeled.test.texts == ["new"]
    assert not set(labeled.train.texts) & set(labeled.validation.texts), "copies of a text fall on one side"
    assert len(labeled.validation) == 50, "the minimum, not 5%"
    assert len(labeled.train) + len(labeled.validation) == 300
    splits(tmp_path, dev="held\t0\n")
    labeled = read_labeled_splits(tmp_path)
    assert not labeled.held_out
    assert (len(labeled.train), labeled.validation.texts) == (300, ["held"])


def test_labels_missing_in_training_are_reported_or_skipped(tmp_path: Path) -> None:
    folder = splits(tmp_path, train="a\tx\nb\ty\n", val="c\tx\nd\tz\ne\tz\n", test="f\ty\n")
    with pytest.raises(
        ValueError,
        match=r"val\.tsv:3: label 'z' does not occur in the training data, which has labels x, y \(2 such rows\)",
    ):
        read_labeled_splits(folder)
    labeled = read_labeled_splits(folder, skip_bad_lines=True)
    assert labeled.validation.texts == ["c"]
    assert sum(labeled.validation.skips.values()) == 2
    with pytest.raises(ValueError, match="found only one label, 'x'"):
        read_labeled_splits(splits(tmp_path, train="a\tx\nb\tx\n"))


def test_inconsistent_settings_are_reported(tmp_path: Path) -> None:
    folder = splits(tmp_path, train="a\tx\nb\ty\n", test_one="c\tx\n", test_two="c\tx\n")
    with pytest.raises(ValueError, match="found several test files"):
        read_labeled_splits(folder)
    write(tmp_path / "dev.tsv", "sentence1\tsentence2\tlabel\na\tb\tx\n")
    with pytest.raises(ValueError, match="found pairs of texts in one and single texts in the other"):
        read_labeled_splits(folder, test=str(folder / "test_one.tsv"))
    (tmp_path / "x").mkdir()
    with pytest.raises(FileNotFoundError, match="no training data"):
        read_labeled_splits(splits(tmp_path / "x", val="a\tx\n"))


def test_booleans_are_labels_or_indices_of_names(tmp_path: Path) -> None:
    rows = '{"text": "a", "label": true}\n{"text": "b", "label": false}\n'
    file = write(tmp_path / "c.jsonl", rows)
    assert read_labeled(file).labels == ["True", "False"]
    assert read_labeled(file, names=("no", "yes")).labels == ["yes", "no"]
    assert read_labeled(file, names=("True", "False")).labels == ["True", "False"]


def test_data_without_any_label_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", '{"text": "a", "label": []}\n{"text": "b", "label": []}\n')
    with pytest.raises(ValueError, match=r"train\.jsonl: no item has a label; expected a list"):
        read_labeled_splits(tmp_path, target="multi-label")


def test_labels_are_sorted_by_value_then_spelling() -> None:
    """In whatever order a set yields them: 1, 01 and 001 are three labels."""
    for labels in (["1", "01", "001", "0"], ["001", "0", "1", "01"]):
        assert label_order(labels) == ("0", "001", "01", "1")


def test_no_label_is_held_out_completely(tmp_path: Path) -> None:
    rows = "".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(200)) + "".join(
        f"rare {i}\trare {i}\n" for i in range(60)
    )
    labeled = read_labeled_splits(splits(tmp_path, train=rows))
    assert labeled.held_out
    assert set(labeled.validation.labels) <= {"a", "b"}
    assert len(labeled.train) + len(labeled.validation) == 260


def test_an_unreadable_cell_is_reported_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"text": "fine", "label": 1}\n{"text": "\\ud83d", "label": 0}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl:2: 'text' contains half a character"):
        read_labeled(file)
    file = write(tmp_path / "b.tsv", "text\ttext\tlabel\na\tb\tx\n")
    with pytest.raises(ValueError, match=r"b\.tsv:1: the header contains 'text' more than once"):
        read_labeled(file)
    file = write(tmp_path / "c.jsonl", "[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"c\.jsonl:1: invalid JSON"):
        read_labeled(file)
    long = "word " * 40_000
    file = write(tmp_path / "d.csv", f"text,label\n{long},x\n")
    assert read_labeled(file).texts == [long]
    file = write(tmp_path / "e.csv", f"text,label\n{long * 6},x\n")
    with pytest.raises(
        ValueError, match=r"e\.csv:2: 'text' is longer than 1,000,000 characters: it has 1,200,000; split it"
    ):
        read_labeled(file)
