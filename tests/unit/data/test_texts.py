"""Plain text: read unchanged, split by hash or position, described in the report."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.splits import SplitData
from manyheads.data.readers.texts import Texts, read_texts
from manyheads.data.sources.running_text import TextSource


def read_text_splits(data: Path | None, **settings: Any) -> SplitData[Texts]:
    return TextSource(data=None if data is None else str(data), **settings).read()


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_texts_are_read_exactly(tmp_path: Path) -> None:
    text = "a\r\nb\u2028c\x0c\n\n é \n"
    write(tmp_path, {"b.txt": text, "a/x": "x\n", ".hidden": "no", ".git/y": "no", "blank.txt": " \n"})
    texts = read_texts(tmp_path)
    assert texts.texts == ["x\n", text]
    assert texts.bytes == len(text.encode()) + 2
    assert read_texts(tmp_path / "b.txt").texts == [text]
    assert read_texts(write(tmp_path, {"bom": b"\xef\xbb\xbfx"}) / "bom").texts == ["x"]


def test_one_text_is_split_by_position_as_nanogpt_does(tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(1003))
    write(tmp_path, {"input.txt": text})
    for data in (tmp_path, tmp_path / "input.txt"):
        corpora = read_text_splits(data, share=0.1)
        assert corpora.train.texts == [text[: int(1003 * 0.9)]]
        assert corpora.validation.texts == [text[int(1003 * 0.9) :]]
        assert corpora.test is None


def test_several_texts_are_split_by_hash(tmp_path: Path) -> None:
    write(tmp_path, {f"{i}.txt": f"text {i % 90}" for i in range(100)})
    corpora = read_text_splits(tmp_path, share=0.2)
    assert not set(corpora.train.texts) & set(corpora.validation.texts)
    assert len(corpora.train) + len(corpora.validation) == 100
    assert 8 < len(corpora.validation) < 35
    renamed = write(tmp_path / "other", {f"x{i}.txt": f"text {i}" for i in range(90)})
    assert set(read_text_splits(renamed, share=0.2).validation.texts) == set(corpora.validation.texts)


def test_rows_skipped_before_a_split_are_reported_once(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_bytes(b"\xff" if name == "c" else name.encode())
    corpora = read_text_splits(tmp_path, share=0.5, skip_bad_lines=True)
    assert corpora.train.skips == {f"{tmp_path / 'c.txt'}: invalid UTF-8": 1}
    assert corpora.validation.skips == {}
    (tmp_path / "b.txt").unlink()
    (tmp_path / "a.txt").write_text("a text to be cut")
    assert len(read_text_splits(tmp_path, share=0.5, skip_bad_lines=True).train.skips) == 1


def test_a_directory_may_contain_splits(tmp_path: Path) -> None:
    write(tmp_path, {"train/a.txt": "a", "train/b.txt": "b", "valid.txt": "v", "test.txt": "t", "README": "no"})
    corpora = read_text_splits(tmp_path)
    assert [texts.texts for texts in corpora.known.values()] == [["a", "b"], ["v"], ["t"]]
    other = write(tmp_path / "other", {"x": "x"}) / "x"
    assert read_text_splits(tmp_path, validation=str(other), test=str(other)).validation.texts == ["x"]


def test_the_standard_library_has_three_disjoint_splits() -> None:
    corpora = read_text_splits(None)
    assert corpora.test is not None
    splits = [set(texts.texts) for texts in (corpora.train, corpora.validation, corpora.test)]
    assert sum(map(len, splits)) == len(set().union(*splits))
    assert corpora.train.bytes > 2_000_000
    assert min(corpora.validation.bytes, corpora.test.bytes) > 20_000


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_each_table_row_is_a_text(tmp_path: Path, suffix: str) -> None:
    texts, file = ["one, two", "three"], tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2], "body": texts}), file)
    elif suffix == ".jsonl":
        file.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    else:
        file.write_text("body\n" + "".join(f'"{text}"\n' if suffix == ".csv" else f"{text}\n" for text in texts))
    assert read_texts(file, column="body").texts == texts


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="pipe: neither a file nor a directory; give a text file"):
        read_texts(tmp_path / "pipe")


def test_bad_input_is_reported(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"one\ntwo \xff\n", "b.txt": "good"})
    with pytest.raises(ValueError, match=r"a\.txt:2: invalid UTF-8; convert .*--skip-bad-lines"):
        read_texts(tmp_path)
    assert read_texts(tmp_path, skip_bad_lines=True).texts == ["good"]
    with pytest.raises(FileNotFoundError, match="nowhere: no such file"):
        read_text_splits(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no usable text found"):
        read_texts(write(tmp_path / "e", {"x": ""}))
    with pytest.raises(ValueError, match="a text of 1 characters is too short to split"):
        read_text_splits(write(tmp_path / "one", {"x": "y"}))
    with pytest.raises(
        ValueError,
        match=r"a\.jsonl:1: expected text in column 'text'; rename the column to 'text', or train with column=NAME",
    ):
        read_texts(write(tmp_path / "table", {"a.jsonl": "{}"}) / "a.jsonl")
    with pytest.raises(ValueError, match="share is 1.5: expected a number above 0 and below 1"):
        read_text_splits(tmp_path, share=1.5)


def test_hashes_cover_whole_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyheads.data.readers.corpus.MAX_PIECE", 50)
    texts = Texts(["häuser " * 100, "b", "c " * 60])
    expected = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) for text in texts.texts]
    assert len(list(texts.parts())) > 3
    assert texts.hashes.tolist() == expected


def test_files_of_another_kind_are_left_out_and_named(tmp_path: Path) -> None:
    files = {"input.txt": b"To be or not to be.\n" * 99, "prepare.py": b"import numpy\n", "readme.md": b"# Data\n"}
    tokens = b"\x05\0\x07\0" * 2000
    for name, content in (files | {"train.bin": tokens, "val.bin": tokens, "meta.pkl": b"\x80\0"}).items():
        (tmp_path / name).write_bytes(content)
    source = TextSource(data=str(tmp_path))
    splits = source.read()
    assert "".join((*splits.train.texts, *splits.validation.texts)).encode() == files["input.txt"]
    line = f"{tmp_path}: train = input.txt; not used: meta.pkl, prepare.py, readme.md, train.bin and 1 more"
    assert line in source.summary_lines(splits)
    for name in ("train.bin", "val.bin", "meta.pkl"):
        (tmp_path / name).unlink()
    (tmp_path / "input.txt").write_bytes(b"numpy\n")  # a folder of source code, with its requirements
    assert len(TextSource(data=str(tmp_path)).read_one(str(tmp_path))) == 3
