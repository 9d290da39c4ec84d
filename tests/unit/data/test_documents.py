"""Documents: sentences, corpus formats, and faults reported by file and line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.documents import read_documents, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rains. It pours!", ["It rains.", "It pours!"]),
        ("It costs 3.50 in e.g. Rome.  2 more?", ["It costs 3.50 in e.g.", "Rome.", "2 more?"]),
        ('"Go." He went.', ['"Go."', "He went."]),
        ("He said (twice.) “No.” Then left.", ["He said (twice.)", "“No.”", "Then left."]),
        ("one line\nanother<br /><br>third", ["one line", "another", "third"]),
        ("no stop. and small letters", ["no stop. and small letters"]),
        ("Ägypten ist weit. Österreich nicht.", ["Ägypten ist weit.", "Österreich nicht."]),
        ("  \n ", []),
    ],
)
def test_sentences_are_split(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def parquet(file: Path, **columns: list[Any]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), file)


def test_every_form_holds_equal_documents(tmp_path: Path) -> None:
    texts = ["First one. It has two sentences.\nAnd a line.", "Second one."]
    expected = [["First one.", "It has two sentences.", "And a line."], ["Second one."]]
    (tmp_path / "a.txt").write_text(f"\n{texts[0]}\n\n  \n{texts[1]}")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": t, "id": 1}) + "\n" for t in texts))
    parquet(tmp_path / "c.parquet", text=texts, label=[0, 1])
    with (tmp_path / "d.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    for name in ("a.txt", "b.jsonl", "c.parquet", "d.csv"):
        assert [*read_documents(tmp_path / name).documents] == expected
    (tmp_path / "notes.md").write_text("not read")
    assert [*read_documents(tmp_path).documents] == expected * 4


def test_another_column_can_be_selected(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", review=["One.", "Two."])
    assert [*read_documents(tmp_path / "a.parquet", column="review").documents] == [["One."], ["Two."]]
    with pytest.raises(ValueError, match=r"a\.parquet: expected a column 'text', found 'review'"):
        read_documents(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\n\n\xff\xfe bad\n", r"a\.txt:3: invalid UTF-8; convert the file"),
        (
            "a.jsonl",
            b'{"text": "x"}\n\n{"text": 3}\n',
            r"a\.jsonl:3: expected text in column 'text'; rename the column",
        ),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', r"a\.jsonl:2: invalid JSON \("),
        (
            "a.jsonl",
            b'{"text": "x"}\n{"text": "\\ud800"}\n',
            r"a\.jsonl:2: 'text' contains half a character .*; encode it as",
        ),
        ("a.jsonl", b"[" * 100_000 + b"\n", r"a\.jsonl:1: invalid JSON"),
        ("a.csv", b"text,label\nx,y\nz\n", r"a\.csv:3: expected 2 columns as in the header, found 1"),
        ("a.parquet", b"PAR?", r"a\.parquet: not a Parquet file"),
        ("a.txt", b" \n\n", r"a\.txt: no text found"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        read_documents(tmp_path / name)
    assert "\n" not in str(raised.value)


def test_malformed_rows_can_be_skipped(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", text=["One.", None, "Three."])
    with pytest.raises(ValueError, match=r"a\.parquet:2: expected text in column 'text'"):
        read_documents(tmp_path / "a.parquet")
    documents = read_documents(tmp_path / "a.parquet", skip_bad_lines=True)
    assert ([*documents.documents], list(documents.skips.values())) == ([["One."], ["Three."]], [1])


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.txt: no such file"):
        read_documents(tmp_path / "none.txt")
    with pytest.raises(FileNotFoundError, match="found no text files; expected files ending in"):
        read_documents(tmp_path)
