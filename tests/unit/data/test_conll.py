"""CoNLL columns: faults reported by file and line, splits, and words of raw text."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.conll import Tagged, read_conll, words_of
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import TaggedSource


def read_splits(data: Path) -> SplitData[Tagged]:
    return TaggedSource(data=str(data)).read()


GOOD = "EU B-ORG\nrejects O\nNew B-LOC\nYork I-LOC\n\n\nPeter B-PER\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_words_tags_and_positions_are_returned(tmp_path: Path) -> None:
    tagged = read_conll(write(tmp_path / "a.txt", GOOD))
    assert tagged.words == [["EU", "rejects", "New", "York"], ["Peter"]]
    assert tagged.tags == [["B-ORG", "O", "B-LOC", "I-LOC"], ["B-PER"]]
    assert tagged.place(0, 3) == f"{tmp_path}/a.txt:4"
    assert tagged.place(1, 0) == f"{tmp_path}/a.txt:7"
    assert tagged.labels == ["O", "B-LOC", "I-LOC", "B-ORG", "B-PER"]
    assert len(tagged.subset([1])) == 1
    assert tagged.subset([1]).place(0, 0).endswith(":7")


@pytest.mark.parametrize(
    "text",
    [
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n-DOCSTART- -X- O O\nPeter NNP B-NP B-PER",
        "EU\tB-ORG\r\nrejects\tO\r\n\r\n \t\r\nPeter\tB-PER\r\n",
        b"\xef\xbb\xbfEU B-ORG\nrejects O \n\nPeter  B-PER\n\n\n",
    ],
    ids=["documents and four columns", "tabs and CRLF", "byte order mark and stray spaces"],
)
def test_forms_of_equal_sentences(tmp_path: Path, text: str | bytes) -> None:
    tagged = read_conll(write(tmp_path / "a.txt", text))
    assert tagged.words == [["EU", "rejects"], ["Peter"]]
    assert tagged.tags == [["B-ORG", "O"], ["B-PER"]]


def test_a_word_may_contain_any_space_but_the_separator(tmp_path: Path) -> None:
    assert read_conll(write(tmp_path / "a.txt", "10\u00a0000 O\n")).words == [["10\u00a0000"]]
    assert read_conll(write(tmp_path / "b.txt", "New York\tB-LOC\n")).words == [["New York"]]


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        ("a O\nb\n", ":2: found a word without a tag; expected the word first and its tag last"),
        ("a O\nb X O\n", ":2: expected 2 columns, found 3; separate them"),
        (b"a O\nb\xff O\n", ":2: invalid UTF-8; convert the file"),
        ("a O\nb I-PER\n", ":2: I-PER after O violates IOB2; expected B-PER"),
        ("a B-LOC\nb I-PER\n", ":2: I-PER after B-LOC violates IOB2"),
        ("a I-PER\n", ":1: I-PER at the start of a sentence violates IOB2"),
        ("a O\nb X-PER\n", ":2: 'X-PER' is not an IOB2 tag; expected O, B-TYPE or I-TYPE"),
        ("a B-\n", ":1: 'B-' is not an IOB2 tag"),
    ],
)
def test_faults_are_reported_or_skipped_with_their_sentence(tmp_path: Path, faulty: str | bytes, message: str) -> None:
    content = faulty if isinstance(faulty, bytes) else faulty.encode()
    file = write(tmp_path / "a.txt", content + b"\n" + GOOD.encode())
    with pytest.raises(ValueError) as error:
        read_conll(file)
    assert str(error.value).startswith(f"{file}{message}")
    assert "\n" not in str(error.value)
    tagged = read_conll(file, skip_bad_lines=True)
    assert tagged.words == [["EU", "rejects", "New", "York"], ["Peter"]]
    assert sum(tagged.skips.values()) == 1


TOKENS, TAGS = [["EU", "rejects", "New", "York"], ["Peter"]], [["B-ORG", "O", "B-LOC", "I-LOC"], ["B-PER"]]


def test_blanks_around_a_tab_are_no_part_of_a_cell(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Ann \tB-PER\nlives\t O\n")
    data = read_conll(tmp_path / "a.conll")
    assert (data.words, data.tags) == ([["Ann", "lives"]], [["B-PER", "O"]])


def as_table(folder: Path, suffix: str, names: tuple[str, str], tokens: Any = TOKENS, tags: Any = TAGS) -> Path:
    file = folder / f"a{suffix}"
    rows = list(zip(tokens, tags, strict=True))
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, (tokens, tags), strict=True)) | {"id": [1, 2]}), file)
    elif suffix == ".jsonl":
        write(file, "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    else:
        mark = "," if suffix == ".csv" else "\t"
        write(file, "".join(mark.join(cells) + "\n" for cells in [names, *(map(" ".join, row) for row in rows)]))
    return file


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("names", [("tokens", "ner_tags"), ("words", "tags")])
def test_tables_hold_equal_sentences(tmp_path: Path, suffix: str, names: tuple[str, str]) -> None:
    file = as_table(tmp_path, suffix, names)
    tagged = read_conll(file)
    assert (tagged.words, tagged.tags) == (TOKENS, TAGS)
    assert tagged.place(0, 3) == f"{file}:{2 if suffix in ('.csv', '.tsv') else 1}"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tokens": ["a", "b"], "tags": ["O"]},
            "found 2 words but 1 tags; write a list of words and a list of tags of equal",
        ),
        ({"tokens": [], "tags": []}, "found 0 words but 0 tags"),
        (
            {"tokens": ["a"], "tags": [3]},
            "expected lists under 'tokens' or 'words' and 'tags' or 'ner_tags'; write a list",
        ),
        ({"text": "a"}, "expected lists under 'tokens'"),
        ({"tokens": ["a", " "], "tags": ["O", "O"]}, "found a blank word"),
        ({"tokens": ["a\0"], "tags": ["O"]}, "contains a NUL byte"),
        ({"tokens": ["a", "b"], "tags": ["O", "C-X"]}, "'C-X' is not an IOB2 tag"),
        (
            {"tokens": ["a" * 600_000] * 2, "tags": ["O"] * 2},
            "found a sentence of more than 1,000,000 characters; split it",
        ),
    ],
)
def test_malformed_table_rows_are_reported(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    file = write(tmp_path / "a.jsonl", json.dumps({"tokens": ["a"], "tags": ["O"]}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ValueError) as refusal:
        read_conll(file)
    assert str(refusal.value).startswith(f"{file}:2: {message}")
    assert sum(read_conll(file, skip_bad_lines=True).skips.values()) == 1


def test_empty_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no usable sentence found"):
        read_conll(write(tmp_path / "a.txt", "\n\n"))
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_conll(tmp_path / "b.txt")


@pytest.mark.parametrize("name", ["dev.txt", "valid.conll", "val.tsv", "validation.txt"])
def test_splits_of_a_directory_are_found(tmp_path: Path, name: str) -> None:
    for file in ("train.txt", name, "test.txt"):
        write(tmp_path / file, GOOD)
    train, validation, test, *_ = read_splits(tmp_path)
    assert [split.file.name for split in (train, validation, test) if split and split.file] == [
        "train.txt", name, "test.txt"
    ]  # fmt: skip
    write(tmp_path / "other.txt", "x O\n")
    assert TaggedSource(data=str(tmp_path), test=str(tmp_path / "other.txt")).splits().test == [
        str(tmp_path / "other.txt")
    ]
    write(tmp_path / "train.b.txt", GOOD)
    with pytest.raises(ValueError, match="several training corpora"):
        read_splits(tmp_path)


def test_without_validation_data_sentences_are_held_out(tmp_path: Path) -> None:
    text = "".join(f"word{i % 150} O\n\n" for i in range(300))  # every sentence twice
    train, validation, test, *_ = read_splits(write(tmp_path / "a.txt", text))
    assert test is None
    assert len(train) + len(validation) == 300
    assert len(validation) == 50, "the minimum, not 5%"
    assert not {tuple(w) for w in train.words} & {tuple(w) for w in validation.words}
    assert train.place(0, 0).startswith(str(tmp_path / "a.txt"))
    with pytest.raises(ValueError, match="one distinct sentence"):
        read_splits(write(tmp_path / "b.txt", "a O\n"))
    (tmp_path / "none").mkdir()
    write(tmp_path / "none" / "b.md", "")
    with pytest.raises(FileNotFoundError, match="found b.md"):
        read_splits(tmp_path / "none")


def test_a_tag_missing_in_training_is_refused(tmp_path: Path) -> None:
    tagged = read_conll(write(tmp_path / "a.txt", GOOD))
    tagged.check_labels(tagged.labels)
    with pytest.raises(ValueError, match=r"a\.txt:7: the tag 'B-PER' does not occur in the training data"):
        tagged.check_labels(["O", "B-LOC", "I-LOC", "B-ORG"])
    assert tagged.only(tagged.labels) is tagged
    some = tagged.only(["O", "B-LOC", "I-LOC", "B-ORG"])
    assert 0 < len(some) < len(tagged)
    some.check_labels(["O", "B-LOC", "I-LOC", "B-ORG"])
    assert some.skips == {f"{tmp_path / 'a.txt'}: tags not in the training data": len(tagged) - len(some)}
    with pytest.raises(ValueError, match="every sentence has a tag that does not occur"):
        tagged.only(["B-NONE"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("EU rejects German call.", ["EU", "rejects", "German", "call", "."]),
        (" (3:45\u00a0PM)  ", ["(", "3:45", "PM", ")"]),
        ("€1,234.50, 1996-08-22!", ["€", "1,234.50", ",", "1996-08-22", "!"]),
        ("don't\n...", ["don't", ".", ".", "."]),
        ("हिन्दी 中文。", ["हिन्दी", "中文", "。"]),
        ("", []),
    ],
)
def test_words_of_raw_text_are_split(text: str, words: list[str]) -> None:
    spans = words_of(text)
    assert [text[start:end] for start, end in spans] == words
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_a_tag_has_printable_characters(tmp_path: Path, character: str) -> None:
    file = write(tmp_path / "a.jsonl", json.dumps({"tokens": ["a"], "tags": [f"B-{character}"]}) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:1: .*(NUL|a tag)"):
        read_conll(file)


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-ORG O I-MISC B-MISC I-MISC I-LOC O"),
        ("IOBES", "S-ORG O S-MISC B-MISC E-MISC S-LOC O"),
        ("BILOU", "U-ORG O U-MISC B-MISC L-MISC U-LOC O"),
    ],
)
def test_other_schemes_are_converted_to_iob2(
    tmp_path: Path, scheme: str, tags: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "".join(f"w{i} {tag}\n" for i, tag in enumerate(tags.split()))
    file = write(tmp_path / "a.txt", f"{rows}\na O\n")
    with caplog.at_level("INFO"):
        tagged = read_conll(file)
    assert tagged.tags[0] == ["B-ORG", "O", "B-MISC", "B-MISC", "I-MISC", "B-LOC", "O"]
    assert caplog.messages == [f"{file}: converted the tags from {scheme} to IOB2"]
    assert tagged.tags == read_conll(file, skip_bad_lines=True).tags


def test_tag_names_of_a_datasets_parquet_file_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = ["O", "B-PER", "I-PER"]
    features = datasets.Features(
        {"tokens": datasets.Sequence(datasets.Value("string")),
         "ner_tags": datasets.Sequence(datasets.ClassLabel(names=names))}
    )  # fmt: skip
    data = {"tokens": [["a", "b"], ["c"]], "ner_tags": [[1, 2], [0]]}
    datasets.Dataset.from_dict(data, features=features).to_parquet(tmp_path / "a.parquet")
    assert read_conll(tmp_path / "a.parquet").tags == [["B-PER", "I-PER"], ["O"]]
