"""Tables and texts in the forms in which other tools write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from manyheads.data.readers.labeled import read_labeled
from manyheads.data.readers.splits import logged
from manyheads.data.readers.texts import read_texts
from manyheads.data.sources.corpora import LabeledSource, TaggedSource
from manyheads.errors import UserError

ROWS = [{"text": "a; b, c", "label": "p"}, {"text": "d", "label": "n"}]
LINES = "\n".join(map(json.dumps, ROWS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text;label\n"a; b, c";p\nd;n\n'),
        ("a.csv", "text\tlabel\na; b, c\tp\nd\tn\n"),
        ("a.csv", 'text,label\n"a; b, c",p\nd,n\n'),
        ("a.json", json.dumps(ROWS)),
        ("a.json", json.dumps(ROWS, indent=2)),
        ("a.json", LINES),
        ("a.jsonl", LINES),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_separators_and_json_arrays_are_recognized(tmp_path: Path, name: str, content: str, compressed: bool) -> None:
    file = tmp_path / (f"{name}.gz" if compressed else name)
    file.write_bytes(gzip.compress(content.encode()) if compressed else content.encode("utf-8-sig"))
    labeled = read_labeled(file)
    assert (labeled.texts, labeled.labels) == (["a; b, c", "d"], ["p", "n"])
    if "json" in name:
        assert list(read_texts(file).texts) == ["a; b, c", "d"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a", "label": "p"}, 3]', r"a\.json: entry 2: expected an object, found int"),
        ("[1, 2", r"a\.json: invalid JSON .*write an array of objects"),
        ('{"a": {\n"b": 1}}', r"a\.json:1: invalid JSON .*write one JSON object per line"),
    ],
)
def test_json_without_rows_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_labeled(tmp_path / "a.json")
    with pytest.raises(UserError):
        read_texts(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.json"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_named(tmp_path: Path, name: str, encoding: str) -> None:
    (tmp_path / name).write_bytes(LINES.encode(encoding))
    named = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    read = read_texts if name == "a.txt" else read_labeled
    for skip in (False, True):
        with pytest.raises(
            UserError, match=f"{name}: the text is {named}; convert it with `iconv -f {named} -t UTF-8`"
        ):
            read(tmp_path / name, skip_bad_lines=skip)


def test_running_text_with_nul_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo \0 words\n")
    with pytest.raises(UserError, match=r"a\.txt:2: contains a NUL byte"):
        read_texts(tmp_path / "a.txt")


def test_the_hint_for_other_encodings_names_no_single_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\u4f60\u597d".encode("gbk"))
    with pytest.raises(UserError, match="such as WINDOWS-1252 or GB18030: `iconv -f ENCODING -t UTF-8`"):
        read_texts(tmp_path / "a.txt")


def glue(folder: Path, test: str) -> str:
    for name, rows in (("train", 9), ("dev", 3)):
        lines = "".join(f"good {i}\t1\nbad {i}\t0\n" for i in range(rows))
        (folder / f"{name}.tsv").write_text(f"sentence\tlabel\n{lines}")
    (folder / "test.tsv").write_text(test)
    return str(folder)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    "test", ["index\tsentence\n0\ta text\n", "sentence\tlabel\na\t-1\n", "sentence\tlabel\na\t\nb\t\n"]
)
def test_test_data_without_labels_are_not_scored(
    tmp_path: Path, test: str, skip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = LabeledSource(data=glue(tmp_path, test), skip_bad_lines=skip)
    with caplog.at_level("INFO"):
        splits = source.read()
    assert (len(splits.train), len(splits.validation), splits.test) == (18, 6, None)
    line = "test.tsv: the test data have no labels, so they are not scored"
    assert caplog.messages == [f"{tmp_path}/{line}"]
    assert "test" not in source.describe(splits)["fingerprints"]
    with pytest.raises(UserError):
        LabeledSource(data=str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv")).read()


def test_a_faulty_label_in_test_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test\.tsv:3: expected a label"):
        LabeledSource(data=glue(tmp_path, "sentence\tlabel\na\t1\nb\t\n")).read()


def test_test_sentences_without_tags_are_not_scored(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"w{i} B-X\n\n" for i in range(20)))
    (tmp_path / "test.txt").write_text("a\nb\n\nc\n")
    assert TaggedSource(data=str(tmp_path)).read().test is None


def test_class_names_of_a_datasets_parquet_file_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["positive", "negative"])}
    )
    data = {"text": [f"t{i}" for i in range(40)], "label": [i % 2 for i in range(40)]}
    file = tmp_path / "train.parquet"
    datasets.Dataset.from_dict(data, features=features).to_parquet(file)
    source = LabeledSource(data=str(file))
    splits = source.read()
    assert set(splits.train.labels) == {"positive", "negative"}
    assert source.read_one(str(file), labels=("negative", "positive")).labels[:2] == ["positive", "negative"]
    assert source.read_one(str(file), labels=("0", "1")).labels[:2] == ["0", "1"], "for models with these labels"


def test_long_phases_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert list(logged(range(250), "reading a.txt")) == list(range(250))
        assert caplog.messages == []
        monkeypatch.setattr("manyheads.data.readers.splits.LOG_SECONDS", 0.0)
        assert len(list(logged(range(250), "reading a.txt"))) == 250
    assert caplog.messages == ["reading a.txt: 100 so far", "reading a.txt: 200 so far"]
