"""Validation splits held out by size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyheads.data.images.checking import check_pixels
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.memory import IN_MEMORY
from manyheads.data.readers.splits import hash_of
from manyheads.data.sources.corpora import LabeledSource, QuestionSource, TaggedSource
from manyheads.data.sources.recorded import recorded_data
from manyheads.data.sources.running_text import DocumentSource, TextSource
from manyheads.data.sources.source import Source


def few(folder: Path, **sizes: int) -> Path:
    """Write files with the given numbers of lines of 20 characters."""
    folder.mkdir(exist_ok=True)
    for name, lines in sizes.items():
        text = "".join(f"{name[:6]:6} has line {number:03}\n" for number in range(lines))
        (folder / f"{name}.txt").write_text(text)
    return folder


def share_of(source: TextSource | DocumentSource) -> float:
    splits = source.read()
    sizes = [sum(map(len, data.texts)) for data in (splits.train, splits.validation)]
    return sizes[1] / sum(sizes)


@pytest.mark.parametrize(
    "sizes",
    [
        {"big": 1000, "small": 2}, {"a": 900, "b": 1100}, {"a": 400, "b": 30, "c": 500, "d": 7},
        {f"file{i}": 50 for i in range(12)}, {**{f"tiny{i}": 1 for i in range(30)}, "huge": 2000},
        {f"part{i}": 4 for i in range(300)},
    ],
    ids=lambda sizes: f"{len(sizes)} files",
)  # fmt: skip
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_accuracy_counts_characters(tmp_path: Path, sizes: dict[str, int], share: float) -> None:
    source = TextSource(data=str(few(tmp_path / "data", **sizes)), share=share)
    assert share / 2 <= share_of(source) <= 2 * share
    splits = source.read()
    whole = [path.read_text() for path in sorted((tmp_path / "data").iterdir())]
    together = sorted("".join(splits.train.texts) + "".join(splits.validation.texts))
    assert together == sorted("".join(whole)), "nothing is lost or read twice"


def test_the_end_of_the_larger_file_is_held_out(tmp_path: Path) -> None:
    folder = few(tmp_path / "data", big=1000, small=2)
    source = TextSource(data=str(folder))
    splits = source.read()
    big, small = (folder / "big.txt").read_text(), (folder / "small.txt").read_text()
    (end,) = splits.validation.texts
    assert splits.train.texts == [big[: -len(end)], small]
    assert big.endswith(end)
    assert "the end of the longest text of the training data, 5.0% of the characters" in source.summary_lines(splits)[1]


def test_documents_are_held_out_by_size(tmp_path: Path) -> None:
    folder = few(tmp_path / "data", big=1000, small=2)
    source = DocumentSource(data=str(folder))
    splits = source.read()
    assert 0.025 <= share_of(source) <= 0.1
    sentences = [s for data in (splits.train, splits.validation) for text in data.documents for s in text]
    assert sorted(sentences) == sorted(line for path in folder.iterdir() for line in path.read_text().splitlines())
    record = json.loads(json.dumps({"data": source.describe(splits)}))
    again = recorded_data(record)
    assert again is not None
    assert again.read("validation") == splits.validation


def test_impossible_held_out_data_are_refused(tmp_path: Path) -> None:
    folder = few(tmp_path / "data", big=1000, small=1)
    (folder / "copy.txt").write_text((folder / "big.txt").read_text())
    with pytest.raises(ValueError, match="failed to hold out 5% of the text, .* copies of each other; give validation"):
        TextSource(data=str(folder)).read()
    (tmp_path / "a.txt").write_text(f"{'word ' * 500}\n\nshort\n")
    with pytest.raises(ValueError, match="longest document has 1 sentences; give validation data"):
        DocumentSource(data=str(tmp_path / "a.txt")).read()


def test_the_smallest_single_sentence_document_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text with some words\n\na short text\n")
    source = DocumentSource(data=str(tmp_path / "a.txt"))
    splits = source.read()
    assert [*splits.validation.texts] == ["a short text"]
    assert "(50.0%)\nwarning: these are many documents" in source.summary_lines(splits)[1]


def squad(folder: Path, *questions: int) -> str:
    """Write articles with the given numbers of questions."""

    def asked(article: int, count: int) -> dict[str, Any]:
        qas = [
            {"question": "?", "id": f"{article}.{i}", "answers": [{"text": "a", "answer_start": 0}]}
            for i in range(count)
        ]
        return {"title": f"T{article}", "paragraphs": [{"context": "a b", "qas": qas}]}

    path = folder / "squad.json"
    path.write_text(json.dumps({"data": [asked(*pair) for pair in enumerate(questions)]}))
    return str(path)


@pytest.mark.parametrize(("questions", "held"), [((74, 16, 15), 16), ((40, 3, 2, 30, 5), 10), ((1, 99), 1)])
def test_questions_are_held_out_by_number(tmp_path: Path, questions: tuple[int, ...], held: int) -> None:
    source = QuestionSource(data=squad(tmp_path, *questions))
    splits = source.read()
    assert len(splits.validation) <= held
    assert not {item.article for item in splits.train.items} & {item.article for item in splits.validation.items}


def labeled(folder: Path, items: int, copies: int = 1) -> str:
    rows = "".join(f"text {i // copies}\t{i // copies % 2}\n" for i in range(items))
    (folder / "train.tsv").write_text(f"text\tlabel\n{rows}")
    return str(folder / "train.tsv")


@pytest.mark.parametrize(
    ("items", "copies", "fraction", "held", "warned"),
    [
        (2000, 1, None, 100, False), (300, 1, None, 50, False), (300, 3, None, 48, True), (105, 1, None, 21, True),
        (2000, 1, 0.1, 200, False), (300, 1, 0.5, 150, True), (300, 1, 0.01, 3, True), (10, 5, None, 5, True),
    ],
)  # fmt: skip
def test_the_fraction_of_items_is_met(
    tmp_path: Path, items: int, copies: int, fraction: float | None, held: int, warned: bool
) -> None:
    source = LabeledSource(data=labeled(tmp_path, items, copies), fraction=fraction)
    if items == 10:
        with pytest.raises(ValueError, match="too few items of each label"):
            source.read()
        return
    splits = source.read()
    assert len(splits.validation) == held
    assert not set(splits.train.texts) & set(splits.validation.texts), "equal items are in one part"
    line = source.summary_lines(splits)[-1]
    assert f"held out {held} items of the training data" in line
    assert ("\nwarning: these are" in line) == warned


def rare(folder: Path, count: int, kind: str) -> Source[Any]:
    """Return a source of 1,200 items with the label b and `count` items with the label a, all late in hash order."""
    words = sorted((f"text{i}" for i in range(1200 + count)), key=hash_of)
    file = folder / ("train.conll" if kind == "tagged" else "train.csv")
    names = ["b"] * 1200 + ["a|b" if kind == "multi-label" else "a"] * count
    rows = zip(words, names, strict=True)
    if kind == "tagged":
        file.write_text("".join(f"{word} B-{name}\n\n" for word, name in rows))
        return TaggedSource(data=str(file))
    file.write_text("text,label\n" + "".join(f"{word},{name}\n" for word, name in rows))
    return LabeledSource(data=str(file), target=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["classes", "multi-label", "tagged"])
@pytest.mark.parametrize(("count", "held"), [(60, 5), (400, 20), (12, 0)])
def test_each_frequent_label_has_validation_items(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, count: int, held: int
) -> None:
    caplog.set_level("INFO")
    source = rare(tmp_path, count, kind)
    splits = source.read()
    parts = [data.tags if kind == "tagged" else data.labels for data in (splits.validation, splits.train)]
    found = [sum("a" in str(labels) for labels in part) for part in parts]
    assert found == [held, count - held]
    assert len(splits.validation) == pytest.approx(0.05 * (1200 + count), abs=5)
    message = f"stratified the validation data by label, because a split by hash would have 0 of the {count} items with"
    assert (message in caplog.text) == (held > 0)
    recorded = recorded_data({"data": json.loads(json.dumps(source.describe(splits)))})
    assert recorded is not None
    assert recorded.read("validation").texts == splits.validation.texts


def test_images_are_stratified_too() -> None:
    pixels = [np.full((2, 2), i, np.uint8) for i in range(250)]
    keys = [check_pixels(image, "L").key for image in pixels]
    late = sorted(range(250), key=lambda i: hash_of(keys[i]))[-30:]
    rows = [(image, "a" if i in late else "b") for i, image in enumerate(pixels)]
    source = ImageSource(data=IN_MEMORY, memory={"train": rows})
    splits = source.read()
    assert splits.validation.labels.count("a") == 6, "a split by hash would have none"
    assert len(splits.validation) == 50


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_an_impossible_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="expected a number above 0 and below 1"):
        LabeledSource(fraction=fraction)
