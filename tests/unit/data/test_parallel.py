"""Parallel text in every format; each fault is reported by file and line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.parallel import Pairs, corpora_in, read_parallel
from manyheads.data.readers.splits import Splits, hold_out
from manyheads.data.sources.corpora import ParallelSource

GERMAN, ENGLISH = ["Ein Hund.", "Zwei\u2028Katzen\x0b.", "Ö\x85 3"], ["A dog.", "Two cats.", "O 3"]
ROWS = list(zip(GERMAN, ENGLISH, strict=True))


def find_splits(data: Path, **paths: Any) -> Splits:
    return ParallelSource(data=str(data), source="de", target="en", **paths).splits()


def two_files(folder: Path, german: str | bytes, english: str | bytes, name: str = "corpus") -> Path:
    for suffix, text in (("de", german), ("en", english)):
        (folder / f"{name}.{suffix}").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def write_prefix(folder: Path) -> str:
    return str(two_files(folder, "\n".join(GERMAN) + "\n", "\n".join(ENGLISH)))


def write_two(folder: Path) -> str:
    write_prefix(folder)
    return f"{folder / 'corpus.de'},{folder / 'corpus.en'}"


def write_crlf(folder: Path) -> str:
    return str(two_files(folder, b"\xef\xbb\xbf" + "\r\n".join(GERMAN).encode() + b"\r\n", "\r\n".join(ENGLISH)))


def write_compressed(folder: Path) -> str:
    prefix = write_prefix(folder)
    for language in ("de", "en"):
        file = Path(f"{prefix}.{language}")
        Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    return prefix


def write_tables(folder: Path) -> str:
    """Write the files, one of them compressed."""
    first = folder / "a.tsv"
    first.write_text("\t".join(ROWS[0]) + "\n", encoding="utf-8")
    second = folder / "b.jsonl.gz"
    rows = (json.dumps({"de": a, "en": b}) + "\n" for a, b in ROWS[1:])
    second.write_bytes(gzip.compress("".join(rows).encode()))
    return f"{first},{second}"


def write_tsv(folder: Path) -> str:
    (folder / "c.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ROWS), encoding="utf-8")
    return str(folder / "c.tsv")


def write_csv(folder: Path) -> str:
    (folder / "c.csv").write_text("".join(f'"{a}","{b}"\n' for a, b in ROWS), encoding="utf-8")
    return str(folder / "c.csv")


def write_tsv_header(folder: Path) -> str:
    rows = "".join(f"{i}\t{b}\t{a}\n" for i, (a, b) in enumerate(ROWS))
    (folder / "c.tsv").write_text("id\ten\tde\n" + rows, encoding="utf-8")
    return str(folder / "c.tsv")


def write_jsonl(folder: Path) -> str:
    forms = [{"de": GERMAN[0], "en": ENGLISH[0]}, {"source": GERMAN[1], "target": ENGLISH[1]}]
    records = [*forms, {"translation": {"de": GERMAN[2], "en": ENGLISH[2]}}]
    (folder / "c.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(folder / "c.jsonl")


def write_parquet(folder: Path) -> str:
    pyarrow.parquet.write_table(pyarrow.table({"en": ENGLISH, "id": [1, 2, 3], "de": GERMAN}), folder / "c.parquet")
    return str(folder / "c.parquet")


def write_parquet_translation(folder: Path) -> str:
    column = [{"de": a, "en": b} for a, b in ROWS]
    pyarrow.parquet.write_table(pyarrow.table({"translation": column}), folder / "c.parquet")
    return str(folder / "c.parquet")


FORMS = [
    write_prefix,
    write_two,
    write_crlf,
    write_tsv,
    write_csv,
    write_compressed,
    write_tables,
    write_tsv_header,
    write_jsonl,
    write_parquet,
    write_parquet_translation,
]


@pytest.mark.parametrize("write", FORMS)
def test_every_form_gives_equal_pairs(tmp_path: Path, write: Callable[[Path], str]) -> None:
    pairs = read_parallel(write(tmp_path), "de", "en")
    assert (pairs.sources, pairs.targets, sum(pairs.skips.values())) == (GERMAN, ENGLISH, 0)


@pytest.mark.parametrize("write", FORMS)
def test_suffixes_may_have_upper_case(tmp_path: Path, write: Callable[[Path], str]) -> None:
    def upper(name: str) -> str:
        stem, *suffixes = Path(name).name.split(".")
        return str(Path(name).with_name(".".join([stem, *map(str.upper, suffixes)])))

    corpus = write(tmp_path)
    for file in sorted(tmp_path.iterdir()):
        file.rename(upper(str(file)))
    pairs = read_parallel(",".join(map(upper, corpus.split(","))), "de", "en")
    assert (pairs.sources, pairs.targets) == (GERMAN, ENGLISH)
    assert corpora_in(tmp_path, "de", "en")


def test_translation_direction_follows_the_settings(tmp_path: Path) -> None:
    pairs = read_parallel(write_parquet(tmp_path), "en", "de")
    assert (pairs.sources, pairs.targets) == (ENGLISH, GERMAN)


@pytest.mark.parametrize(
    ("german", "english", "message", "left"),
    [
        (b"a\n\xff\nc\n", b"x\ny\nz\n", r"corpus\.de:2: invalid UTF-8; .*iconv", ["a", "c"]),
        (b"a\nb\nc\n", b"x\ny\n\xe9\n", r"corpus\.en:3: invalid UTF-8", ["a", "b"]),
        (b"a\nb\nc\n", b"x\n \nz\n", r"corpus\.en:2: blank on the en side only", ["a", "c"]),
        (b"\nb\nc\n", b"x\ny\nz\n", r"corpus\.de:1: blank on the de side only", ["b", "c"]),
    ],
)
def test_malformed_lines_are_reported(
    tmp_path: Path, german: bytes, english: bytes, message: str, left: list[str]
) -> None:
    prefix = two_files(tmp_path, german, english)
    with pytest.raises(ValueError, match=message) as error:
        read_parallel(prefix, "de", "en")
    assert "\n" not in str(error.value)
    assert "--skip-bad-lines" in str(error.value)
    pairs = read_parallel(prefix, "de", "en", skip_bad_lines=True)
    assert (pairs.sources, sum(pairs.skips.values())) == (left, 1)
    assert list(pairs.skips.values()) == [1]


@pytest.mark.parametrize("skip", [False, True])
def test_faults_of_whole_files_cannot_be_skipped(tmp_path: Path, skip: bool) -> None:
    prefix = two_files(tmp_path, "a\nb\nc\n", "x\ny\n")
    with pytest.raises(ValueError, match=r"corpus\.de has 3 lines but .*corpus\.en has 2 .*lines from 3"):
        read_parallel(prefix, "de", "en", skip_bad_lines=skip)
    with pytest.raises(ValueError, match=r"corpus\.en: the file is empty"):
        read_parallel(two_files(tmp_path, "a\n", ""), "de", "en", skip_bad_lines=skip)
    with pytest.raises(ValueError, match="no usable pair"):
        read_parallel(two_files(tmp_path, "\n\n", "\n\n"), "de", "en", skip_bad_lines=skip)


def test_lines_blank_on_both_sides_are_counted(tmp_path: Path) -> None:
    pairs = read_parallel(two_files(tmp_path, "a\n\nc\n", "x\n\nz\n"), "de", "en")
    assert (pairs.sources, pairs.targets, sum(pairs.skips.values())) == (["a", "c"], ["x", "z"], 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.tsv", "a\tb\nc d\n", r"c\.tsv:2: expected 2 columns, found 1"),
        ("c.tsv", "a\tb\nc\td\te\n", r"c\.tsv:2: expected 2 columns, found 3"),
        ("c.tsv", "a\tb\nc\t\n", r"c\.tsv:2: blank on the en side only"),
        ("c.jsonl", '{"de": "a", "en": "b"}\n{"de": "a"\n', r"c\.jsonl:2: invalid JSON"),
        ("c.jsonl", "[" * 100_000 + "\n", r"c\.jsonl:1: invalid JSON"),
        ("c.csv", "a,b\nc,\n", r"c\.csv:2: blank on the en side only"),
        ("c.tsv", "a\tb\nc\0\td\n", r"c\.tsv:2: contains a NUL byte"),
        ("c.tsv", f"a\tb\n{'c' * 1_000_001}\td\n", r"c\.tsv:2: 'de' is longer than 1,000,000 characters"),
        ("c.jsonl", '{"de": "a", "fr": "b"}\n', r"c\.jsonl:1: expected texts under 'de' and 'en'"),
        ("c.jsonl", "[1]\n", r"c\.jsonl:1: expected a JSON object, found list"),
        ("c.jsonl", '{"de": "a", "en": 3}\n', r"c\.jsonl:1: expected text in 'en', found 3"),
        (
            "c.jsonl",
            '{"de": "a", "en": "b\\ud800"}\n',
            r"c\.jsonl:1: 'en' contains half a character \(a lone surrogate\)",
        ),
        ("c.parquet", "no parquet", r"c\.parquet: not a Parquet file"),
    ],
)
def test_malformed_tables(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_parallel(tmp_path / name, "de", "en")
    assert "\n" not in str(error.value)


def test_parquet_columns_and_nulls(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": ["x"], "b": ["y"]}), path)
    with pytest.raises(
        ValueError, match=r"c\.parquet: expected a column 'translation' or 'de' or 'en' .*, found 'a', 'b'"
    ):
        read_parallel(path, "de", "en")
    pyarrow.parquet.write_table(pyarrow.table({"de": ["x", None], "en": ["y", "z"]}), path)
    with pytest.raises(ValueError, match=r"c\.parquet:2: expected text in 'de', found None"):
        read_parallel(path, "de", "en")


def test_missing_files_suggest_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.de: no such file; give a prefix"):
        read_parallel(tmp_path / "nothing", "de", "en")
    with pytest.raises(FileNotFoundError, match=r"nothing\.tsv: no such file"):
        read_parallel(tmp_path / "nothing.tsv", "de", "en")
    with pytest.raises(ValueError, match="expected two files, .* found 3"):
        read_parallel("a,b,c", "de", "en")
    with pytest.raises(ValueError, match="is a directory"):
        read_parallel(tmp_path, "de", "en")


@pytest.mark.parametrize("held", ["val", "valid", "validation", "dev"])
def test_directory_of_splits_is_read(tmp_path: Path, held: str) -> None:
    for name in ("train", held, "test_2016", "test_2017"):
        two_files(tmp_path, name, name, name)
    (tmp_path / "test_2018.en").write_text("no counterpart")
    splits = find_splits(tmp_path)
    assert splits.train == str(tmp_path / "train")
    assert splits.validation == str(tmp_path / held)
    assert splits.test == [str(tmp_path / "test_2016"), str(tmp_path / "test_2017")]
    data = ParallelSource(data=str(tmp_path), source="de", target="en").read()
    assert (data.train.sources, data.validation.targets) == (["train"], [held])
    assert data.test is not None
    assert data.test.sources == ["test_2016"]


def test_table_parts_form_one_corpus(tmp_path: Path) -> None:
    for part, rows in enumerate((ROWS[:1], ROWS[1:])):
        table = pyarrow.Table.from_pylist([{"translation": {"de": a, "en": b}} for a, b in rows])
        pyarrow.parquet.write_table(table, tmp_path / f"train-{part:05}-of-00002.parquet")
    (tmp_path / "test_2016.tsv").write_text("a\tb\n")
    source = ParallelSource(data=str(tmp_path), source="de", target="en")
    splits = source.splits()
    assert splits.train == ",".join(str(tmp_path / f"train-0000{part}-of-00002.parquet") for part in (0, 1))
    pairs = source.read_one(splits.train)
    assert list(zip(pairs.sources, pairs.targets, strict=True)) == ROWS
    assert source.describe(source.read())["data"] == splits.train
    with (tmp_path / "train-00001-of-00002.parquet").open("r+b") as file:
        file.truncate(30)
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.parquet: not a Parquet file"):
        source.read()


def test_a_fault_is_reported_with_its_table(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n")
    (tmp_path / "b.tsv").write_text("c\td\ne\t \n")
    with pytest.raises(ValueError, match=r"/b\.tsv:2: blank on the en side only"):
        read_parallel(f"{tmp_path / 'a.tsv'},{tmp_path / 'b.tsv'}", "de", "en")
    with pytest.raises(FileNotFoundError, match=r"/c\.tsv: no such file; give an existing \.tsv file"):
        read_parallel(f"{tmp_path / 'a.tsv'},{tmp_path / 'c.tsv'}", "de", "en")


def test_a_name_that_begins_with_test_is_not_a_split(tmp_path: Path) -> None:
    for name in ("train", "testimonials", "test2016"):
        two_files(tmp_path, name, name, name)
    assert find_splits(tmp_path).test == [str(tmp_path / "test2016")]


def test_directory_faults_are_reported(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a")
    with pytest.raises(FileNotFoundError, match=r"found no data; expected train\.de \+ train\.en.*found notes\.txt"):
        find_splits(tmp_path)
    (tmp_path / "train.de").write_text("a")
    with pytest.raises(FileNotFoundError, match=r"train\.en: no such file, but train\.de exists"):
        find_splits(tmp_path)
    for name in ("train-0.tsv", "train-1.tsv"):
        (tmp_path / name).write_text("a\tb\n")
    with pytest.raises(ValueError, match=r"several training corpora \(train-0\.tsv, train-1\.tsv\)"):
        find_splits(tmp_path)


def test_named_splits_take_precedence_and_must_exist(tmp_path: Path) -> None:
    for name in ("train", "val", "other"):
        two_files(tmp_path, name, name, name)
    other = str(tmp_path / "other")
    assert find_splits(tmp_path, validation=other, test=other)[1:] == (other, [other])
    with pytest.raises(FileNotFoundError, match=r"missing\.de: no such file"):
        find_splits(tmp_path, validation=str(tmp_path / "missing"))


def test_holding_out_keeps_copies_together_independently_of_other_rows() -> None:
    sources = [f"sentence {i % 1500}" for i in range(3000)]
    pairs = Pairs(sources, [str(i) for i in range(3000)])
    kept, held = hold_out(pairs, pairs.sources, what="sentence")
    assert not set(kept.sources) & set(held.sources)
    assert sorted([*kept.targets, *held.targets]) == sorted(pairs.targets)
    assert 0.03 < len(held) / len(pairs) < 0.07
    backwards = hold_out(Pairs(sources[::-1], pairs.targets[::-1]), sources[::-1], what="sentence")[1]
    assert set(backwards.sources) == set(held.sources)
    fewer = hold_out(pairs.subset(range(0, 3000, 2)), sources[::2], what="sentence")[1]
    assert set(fewer.sources) <= set(held.sources)
    assert [len(part) for part in hold_out(Pairs(["a", "b"], ["x", "y"]), ["a", "b"], what="sentence")] == [1, 1]
    with pytest.raises(ValueError, match="one distinct sentence cannot be split; give validation data"):
        hold_out(Pairs(["a", "a"], ["x", "y"]), ["a", "a"], what="sentence")


def test_missing_validation_is_held_out(tmp_path: Path) -> None:
    lines = "".join(f"line {i}\n" for i in range(400))
    splits = ParallelSource(data=str(two_files(tmp_path, lines, lines)), source="de", target="en").read()
    assert len(splits.train) + len(splits.validation) == 400
    assert len(splits.validation) == splits.held_out == 50


def test_an_endless_line_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.data.readers.splits.MAX_LINE_BYTES", 1000)
    (tmp_path / "a.de").write_text("x\n")
    (tmp_path / "a.en").write_text("y" * 5000)
    with pytest.raises(ValueError, match=r"a\.en:1: the line is longer than 1,000 bytes; split it into several"):
        read_parallel(str(tmp_path / "a"), "de", "en")
