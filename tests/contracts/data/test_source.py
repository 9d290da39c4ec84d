"""Data sources of runs: a source survives a round trip through a record, and only its files are opened."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import lab.records
from manyheads.data.readers.labeled import Columns
from manyheads.data.readers.splits import SplitData, working_directory
from manyheads.data.sources.corpora import LabeledSource, ParallelSource, QuestionSource, TaggedSource
from manyheads.data.sources.recorded import KINDS, recorded_data
from manyheads.data.sources.running_text import DocumentSource, TextSource
from manyheads.data.sources.source import Source
from manyheads.errors import UserError
from papers.nonlocal_net.moving_digits import ClipSource
from papers.universal.source import DigitSource

OF_PAPERS = (DigitSource, ClipSource)
RUNS = sorted((lab.records.RESULTS / "runs").glob("*.json"))


def squad(articles: int) -> str:
    def article(number: int) -> dict[str, Any]:
        question = {"question": "?", "id": str(number), "answers": [{"text": "a", "answer_start": 0}]}
        return {"title": f"T{number}", "paragraphs": [{"context": "a b", "qas": [question]}]}

    return json.dumps({"data": [article(number) for number in range(articles)]})


def write(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content, encoding="utf-8")
    return str(folder)


def rows(count: int, item: str) -> str:
    return "".join(item.format(i) for i in range(count))


def parallel(folder: Path, skip: bool = False) -> ParallelSource:
    tests = "\tnothing\n" * skip + "c\td\n"
    data = write(folder, train_tsv=rows(60, "a {0}\tb {0}\n"), test_tsv=tests)
    return ParallelSource(source="de", target="en", skip_bad_lines=skip, data=data)


def labeled(folder: Path, skip: bool = False) -> LabeledSource:
    tests = "body,mark,id\nx,1,9\n" + "z,9,3\nnone of them,7,3\n,0,3\n" * skip
    data = write(folder, train_csv="body,mark,id\n" + rows(30, "text {0},0,1\nmore {0},1,2\n"), test_csv=tests)
    columns = Columns(text="body", label="mark")
    return LabeledSource(columns=columns, names=("no", "yes"), skip_bad_lines=skip, data=data)


def tagged(folder: Path, skip: bool = False) -> TaggedSource:
    tests = "a B-X\n\n" + "x B-NONE\n\ny I-X\n" * skip
    data = write(folder, train_txt=rows(60, "w{0} B-X\n\nv{0} O\n\n"), test_txt=tests)
    return TaggedSource(skip_bad_lines=skip, data=data)


def questions(folder: Path, skip: bool = False) -> QuestionSource:
    return QuestionSource(skip_bad_lines=skip, data=write(folder, train_json=squad(60), test_json=squad(3)))


def running(folder: Path, skip: bool = False) -> TextSource:
    tests = '"a"b\n' * skip + "x\n"
    data = write(folder, train_csv="body\n" + rows(30, "text {0}\n"), test_csv="body\n" + tests)
    return TextSource(skip_bad_lines=skip, column="body", share=0.2, data=data)


def recorded(source: Source[Any], splits: SplitData[Any]) -> dict[str, Any]:
    """Return the record of the run runs/a, which was started in the working directory."""
    return {"data": {**source.describe(splits), "directory": working_directory(Path("runs/a"))}}


SOURCES: list[Callable[..., Source[Any]]] = [parallel, labeled, tagged, running, questions]
LABELS = {"labeled": ("no", "yes"), "tagged": ("O", "B-X")}


@pytest.mark.parametrize("skip", [False, True], ids=["", "skipping"])
@pytest.mark.parametrize("make", SOURCES)
def test_a_saved_description_reads_the_same_splits(
    tmp_path: Path, make: Callable[..., Source[Any]], skip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a translator that was trained with --skip-bad-lines, too."""
    source = make(tmp_path / "data", skip)
    monkeypatch.chdir(tmp_path)
    source = type(source)(**{**source.__dict__, "data": "data"})
    splits = source.read()
    record = json.loads(json.dumps(recorded(source, splits)))
    assert "validation" in source.report(splits)
    contents = {split: [*source.content(data, split)] for split, data in splits.known.items()}
    monkeypatch.chdir("/")
    again = recorded_data(record, run=tmp_path / "runs" / "a")
    assert again is not None
    assert type(again.source) is type(source)
    labels = LABELS.get(source.kind, ())
    for split in contents.keys() - {"train"}:
        assert [*source.content(again.read(split, labels=labels), split)] == contents[split]
    other = again.source.read_other(str(tmp_path / "data"), labels=labels)
    assert [*source.content(other, "test")] == contents["test"]
    (file,), (train,) = ((tmp_path / "data").glob(f"{split}.*") for split in ("test", "train"))
    file.write_text(train.read_text())
    name = str(file).removeprefix("/")  # relative to the working directory
    with pytest.raises(ValueError, match=rf"^{name}: the test data changed since the run; .*--data {name}"):
        again.read("test", labels=labels)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="no such file"):
        again.read("test", labels=labels)


BAD = {  # training data with one faulty row, without validation data
    "parallel": rows(99, "a {0}\tb {0}\n") + "\tnothing\n",
    "labeled": "body,mark,id\n" + rows(99, "x {0},1,9\nw {0},0,9\n") + "z,9,3\n",
    "tagged": rows(99, "a{0} B-X\n\n") + "y I-X\n",
    "running": "body\n" + rows(99, "text {0}\n") + '"a"b\n',
}


@pytest.mark.parametrize("make", SOURCES[:4])
def test_a_skipped_row_counts_once_if_validation_data_are_held_out(
    tmp_path: Path, make: Callable[..., Source[Any]]
) -> None:
    source = make(tmp_path / "data", True)
    (file,) = (tmp_path / "data").glob("train.*")
    file.write_text(BAD[make.__name__])
    splits = source.read()
    assert splits.held_out > 0
    assert [sum(split.skips.values()) for split in (splits.train, splits.validation)] == [1, 0]


def test_two_files_are_reread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_de=rows(50, "a {0}\n"), a_en=rows(50, "b {0}\n"), t_de="c\n", t_en="d\n")
    monkeypatch.chdir(tmp_path)
    source = ParallelSource(source="de", target="en", data="a.de,a.en", test="t.de,t.en")
    record = recorded(source, source.read())
    monkeypatch.chdir("/")
    again = recorded_data(record, run=tmp_path / "runs" / "a")
    assert again is not None
    assert again.read().targets == ["d"]
    assert len(again.read("validation")) > 0


def test_documents_can_have_validation_data_only(tmp_path: Path) -> None:
    write(tmp_path, train_txt=rows(90, "Text {0}.\n\n"), other_csv="body\nOne. Two.\n")
    train, other = str(tmp_path / "train.txt"), str(tmp_path / "other.csv")
    for source in (DocumentSource(data=train), DocumentSource(data=train, validation=other, column="body")):
        splits = source.read()
        again = recorded_data({"data": source.describe(splits)})
        assert again is not None
        assert again.read("validation") == splits.validation
        with pytest.raises(ValueError, match="was trained without test data; give some with --data"):
            again.read("test")


@pytest.mark.parametrize(
    ("make", "content", "message"),
    [
        (parallel, "one column\n", r"train\.tsv:1: expected 2 columns, found 1"),
        (parallel, "", r"train\.tsv: the file is empty"),
        (labeled, "body,mark\n,1\n", r"train\.csv:2: 'body' is blank"),
        (tagged, "word\n", r"train\.txt:1: found a word without a tag"),
        (tagged, "word C-X\n", r"train\.txt:1: 'C-X' is not an IOB2 tag"),
        (questions, "no JSON", r"train\.json: invalid JSON"),
        (running, 'body\n"a"b\n', r"train\.csv:2: invalid CSV"),
    ],
)
def test_faults_of_the_training_data_are_found(
    tmp_path: Path, make: Callable[..., Source[Any]], content: str, message: str
) -> None:
    source = make(tmp_path)
    source.read()
    (train,) = tmp_path.glob("train.*")
    train.write_text(content)
    with pytest.raises(ValueError, match=message):
        source.read()


def test_every_record_names_its_data(subtests: pytest.Subtests) -> None:
    assert RUNS
    for run in RUNS:
        with subtests.test(run.stem):
            _tells_its_data(json.loads(run.read_text(encoding="utf-8")))


def _tells_its_data(record: dict[str, Any]) -> None:
    recorded = recorded_data(record, *OF_PAPERS)
    if not record["data"]:
        assert recorded is None
        return
    assert recorded is not None
    source, prints = recorded.source, recorded.fingerprints
    assert KINDS.get(source.kind) is type(source) or type(source) in OF_PAPERS
    assert set(prints.values()) <= set(record["data"]["fingerprints"].values())
    named = getattr(source, "columns", None)
    columns = {} if named is None else {"columns": asdict(named)}
    now = {**source.__dict__, "kind": source.kind, "fingerprints": prints, **columns}
    again = recorded_data({"data": now}, *OF_PAPERS)
    assert again == recorded


def test_a_record_opens_no_untrusted_path(tmp_path: Path) -> None:
    source = parallel(tmp_path)
    description = source.describe(source.read())
    os.mkfifo(tmp_path / "pipe.tsv")
    for change, message in (
        ({"test": "hub:someone/something"}, "is not downloaded automatically"),
        ({"test": str(tmp_path / "pipe.tsv")}, "no such file"),
        ({"fingerprints": {}}, "was trained without test data"),
        ({"fingerprints": {"test": "a"}}, "changed since the run"),
    ):
        foreign = recorded_data({"data": {**description, **change}})
        assert foreign is not None
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            foreign.read()


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "parallel", "data": 3},
        {"kind": "parallel", "size": 10**12},
        {"kind": "labeled", "columns": 3},
        {"kind": "tagged", "fingerprints": 7},
        [1],
    ],
)
def test_a_damaged_record_is_rejected(data: Any) -> None:
    with pytest.raises(ValueError, match=r"result\.json is damaged and does not describe the run's data .*--data"):
        recorded_data({"data": data})


def test_a_record_without_data_has_no_source() -> None:
    assert recorded_data({}) is None
    assert recorded_data({"data": {}}) is None
    assert recorded_data({"data": {"kind": "nonsense"}}) is None


@pytest.mark.parametrize("kind", [ParallelSource, LabeledSource, TaggedSource])
def test_data_next_to_an_embedded_corpus_are_read_or_refused(tmp_path: Path, kind: Callable[..., Source[Any]]) -> None:
    other = write(tmp_path, other_txt=rows(30, "Text {0}.\n\n")) + "/other.txt"
    for given, named in (({"test": other}, "test"), ({"validation": other, "test": other}, "validation and test")):
        with pytest.raises(ValueError, match=f"^{named} without data: give the training data, too, with data=PATH"):
            kind(**given).read()
    beside = TextSource(validation=other, test=other).read()
    assert beside.validation.texts == beside.known["test"].texts == [Path(other).read_text()]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_compressed_splits_are_read(tmp_path: Path, make: Callable[..., Source[Any]], split: str) -> None:
    source = make(tmp_path)

    def contents() -> dict[str, list[str]]:
        return {name: [*source.content(data, name)] for name, data in source.read().known.items()}

    plain = contents()
    (file,) = tmp_path.glob(f"{split}.*")
    with gzip.open(f"{file}.gz", "wb") as compressed:
        compressed.write(file.read_bytes())
    file.unlink()
    assert contents() == plain
    assert set(plain) == {"train", "validation", "test"}


def test_several_directories_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        write(tmp_path / name, a_txt=f"of {name}\n")
    monkeypatch.chdir(tmp_path)
    source = TextSource(data="one,two", validation="three")
    record = recorded(source, source.read())
    monkeypatch.chdir("/")
    again = recorded_data(record, run=tmp_path / "runs" / "a")
    assert again is not None
    assert again.source.read().train.texts == ["of one\n", "of two\n"]
    assert again.read("validation").texts == ["of three\n"]


def test_a_sample_has_every_label(tmp_path: Path) -> None:
    labels = "".join(f"text {i},{'rare' if i == 7 else 'ab'[i % 2]}\n" for i in range(200))
    data = write(tmp_path, train_csv="text,label\n" + labels, val_csv="text,label\nx,a\n") + "/"
    assert len(LabeledSource(data=data, sample=199, seed=1).read().train) == 199
    with pytest.raises(ValueError, match="^items=3: the sample has no item with the label 'rare'; use more items"):
        LabeledSource(data=data, sample=3).read()
    with pytest.raises(
        ValueError, match="^items=1: the sample has no item with the label '.*' and 1 more; use more items"
    ):
        LabeledSource(data=data, sample=1).read()


@pytest.mark.parametrize("kind", [LabeledSource, TaggedSource, QuestionSource, TextSource, DocumentSource])
def test_a_missing_split_is_reported_before_other_data_are_read(
    tmp_path: Path, kind: Callable[..., Source[Any]]
) -> None:
    write(tmp_path, train_tsv="damaged\n")
    given = {"data": str(tmp_path / "train.tsv"), "validation": str(tmp_path / "absent.tsv")}
    with pytest.raises(
        FileNotFoundError, match=r"absent\.tsv: no such file or directory; give .*, or a directory with train"
    ):
        kind(**given).read()


def test_unlabeled_test_data_do_not_hinder_the_validation_data(tmp_path: Path) -> None:
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (tmp_path / "test.csv").write_text("text\na film\n")
    source = LabeledSource(data=str(tmp_path))
    splits = source.read()
    assert splits.test is None
    recorded = recorded_data({"data": source.describe(splits)})
    assert recorded is not None
    assert len(recorded.read("validation")) == len(splits.validation)


def test_flags_are_no_names_of_labels(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,toxic\n" + "\n".join(f"text {number},{number % 2}" for number in range(60)))
    source = LabeledSource(data=str(tmp_path / "t.csv"), target="multi-label", columns=Columns(label="toxic"))
    with pytest.raises(UserError, match=r"the labels are 0 and 1; name a column of flags in a list"):
        source.read()
    assert replace(source, columns=Columns(label=("toxic",))).read().train.labels[0] in ("toxic", "")
