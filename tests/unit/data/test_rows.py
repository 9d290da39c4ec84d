"""Rows of every format: the same cells and the same faults, each reported by file and line or counted."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import Row, character_fault, filter_invalid, text_fault
from manyheads.data.readers.splits import LONGEST
from manyheads.data.readers.tables import table
from manyheads.data.text.text_faults import check_text
from manyheads.errors import UserError

CELLS = [{"a": "one, two", "b": "x"}, {"a": 'He said "no".', "b": "ü"}, {"a": "Zwei\u2028Katzen\x0b", "b": " "}]
TEXTS = {
    "c.tsv": "\ufeffa\tb\r\n" + "\n".join(f"{c['a']}\t{c['b']}\n" for c in CELLS),
    "c.csv": "a,b\n" + "\n\n".join(",".join(f'"{c[k]}"' for k in "ab").replace('"no"', '""no""') for c in CELLS),
    "c.jsonl": "\n".join(json.dumps(c) + "\n" for c in CELLS),
}


def write(folder: Path, name: str, content: str | bytes | None = None) -> Path:
    content = TEXTS[name] if content is None else content
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "c.parquet", compression="none")
    return folder / "c.parquet"


@pytest.mark.parametrize("name", [*TEXTS, "c.parquet"])
def test_every_format_has_equal_cells(tmp_path: Path, name: str) -> None:
    made = parquet(tmp_path, {k: [c[k] for c in CELLS] for k in "ab"}) if "parquet" in name else write(tmp_path, name)
    rows = list(table(made))
    assert [dict(row.cells) for row in rows] == CELLS
    first = {"c.tsv": 2, "c.csv": 2}.get(name, 1)
    assert rows[0].place == f"{made}:{first}"
    assert not any(row.fault for row in rows)


def test_a_header_that_lacks_a_language_is_refused(tmp_path: Path) -> None:
    for name, mark in (("c.tsv", "\t"), ("c.csv", ",")):
        file = write(tmp_path, name, f"de{mark}fr\nEins.{mark}Un.\n")
        with pytest.raises(UserError, match="expected the columns 'de' and 'en', found a header with 'de', 'fr'"):
            list(table(file, headers=[("de", "en"), ("source", "target")]))


def test_a_file_without_a_header_uses_the_given_columns(tmp_path: Path) -> None:
    headers = [("de", "en"), ("source", "target")]
    for suffix, mark in ((".tsv", "\t"), (".csv", ",")):
        bare = list(table(write(tmp_path, f"bare{suffix}", f"a{mark}b\nc{mark}d\ne\n"), headers=headers))
        assert bare[0] == Row(tmp_path / f"bare{suffix}", 1, {"de": "a", "en": "b"})
        assert bare[2].fault == "expected 2 columns, found 1"
        named = list(table(write(tmp_path, f"named{suffix}", f"id{mark}en{mark}de\n1{mark}b\u2028{mark}a\n"),
                           headers=headers))  # fmt: skip
        assert [row.cells for row in named] == [{"id": "1", "en": "b\u2028", "de": "a"}]


def test_parquet_columns_are_read_by_name(tmp_path: Path) -> None:
    file = parquet(tmp_path, {"image": [b"\x00\xff"] * 3000, "label": list(range(3000)), "other": ["x"] * 3000})
    rows = list(table(file, columns=("img", "image", "label")))
    assert rows[-1] == Row(file, 3000, {"image": b"\x00\xff", "label": 2999})
    with pytest.raises(ValueError, match=r"c\.parquet: expected a column 'text', found 'image', 'label', 'other'"):
        list(table(file, columns=("text",)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.tsv", "a\tb\n1\t2\n3\n", ":3: expected 2 columns as in the header, found 1; separate cells with one tab"),
        ("c.csv", "a,b\n1,2\n3\n", ":3: expected 2 columns as in the header, found 1; quote cells"),
        ("c.csv", 'a,b\n1,2\n"3"x,4\n', ":3: invalid CSV"),
        ("c.csv", 'a,b\n"1\n",2\n"3"x,4\n', ":4: invalid CSV"),
        ("c.tsv", b"a\tb\n1\t2\n\xff\t2\n", ":3: invalid UTF-8; convert the file"),
        ("c.csv", b"a,b\n1,2\n\xff,2\n", ":3: invalid UTF-8"),
        ("c.jsonl", b'{"a": 1}\n\n\xff\n', ":3: invalid UTF-8"),
        ("c.tsv", "a\tb\n1\t2\n3\0\t2\n", ":3: contains a NUL byte; remove it"),
        ("c.csv", "a,b\n1,2\n3\0,2\n", ":3: contains a NUL byte; remove it"),
        ("c.jsonl", '{"a": 1}\n{"a"\n', ":2: invalid JSON (Expecting ':' delimiter); write one JSON object per line"),
        ("c.jsonl", '{"a": 1}\n[1]\n', ":2: expected a JSON object, found list; write a JSON object"),
        ("c.jsonl", '{"a": 1}\n' + '{"a":' * 100_000 + "\n", ":2: invalid JSON ("),
    ],
)
def test_faults_are_refused_or_counted(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    file = write(tmp_path, name, content)
    with pytest.raises(ValueError) as refusal:
        list(filter_invalid(table(file), Counter(), skip=False))
    assert str(refusal.value).startswith(f"{file}{message}")
    assert str(refusal.value).endswith(", or skip such lines with --skip-bad-lines")
    assert "\n" not in str(refusal.value)
    after = {"c.tsv": b"5\t6\n", "c.csv": b"5,6\n", "c.jsonl": b'{"a": 5}\n'}[name]
    file.write_bytes(file.read_bytes() + after)
    skips: Counter[str] = Counter()
    assert [str(row.cells["a"]).strip() for row in filter_invalid(table(file), skips, skip=True)] == ["1", "5"]
    assert list(skips.values()) == [1]
    assert next(iter(skips)).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.tsv", "a\tb\ta\n1\t2\t3\n", r"c\.tsv:1: the header contains 'a' more than once; rename the columns"),
        ("c.csv", "a,b,a\n1,2,3\n", r"c\.csv:1: the header contains 'a' more than once; rename the columns"),
        ("c.tsv", b"\xff\tb\n1\t2\n", r"c\.tsv:1: invalid UTF-8"),
        ("c.csv", b"\xff,b\n1,2\n", r"c\.csv:1: invalid UTF-8"),
        ("c.csv", "a\0,b\n1,2\n", r"c\.csv:1: contains a NUL byte"),
        ("c.jsonl", "", r"c\.jsonl: the file is empty"),
        ("c.parquet", "PAR?", r"c\.parquet: not a Parquet file \("),
        ("c.txt", "a", r"c\.txt: unknown table format; expected a \.tsv"),
    ],
)
def test_a_file_that_is_not_a_table_is_rejected(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(filter_invalid(table(write(tmp_path, name, content)), Counter(), skip=True))


@pytest.mark.parametrize("end", ["", '"'])
def test_a_quote_that_never_closes_costs_one_line(tmp_path: Path, end: str) -> None:
    rows = [f"row {i},{i}" for i in range(40)]
    rows[10] = '"row 10,10'
    rows[30] = f'"row\n30",30\nx {end}quoted{end},31' if end else "row 30,30"
    rows_read = [*table(write(tmp_path, "c.csv", "a,b\n" + "\n".join(rows)))]
    faults = [row for row in rows_read if row.fault]
    assert [row.number for row in faults] == [12]
    assert faults[0].fault.startswith("invalid CSV (")
    assert len(rows_read) - 1 == 39 + bool(end)
    assert rows_read[-1].number == (43 if end else 41)


@pytest.mark.parametrize(("name", "content"), [("c.jsonl", '{"a": 1, "a": 2}'), ("c.json", '[{"a": 1, "a": 2}]')])
def test_a_repeated_name_is_refused(tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(UserError, match=r"invalid JSON \(an object has a name twice\)"):
        [*filter_invalid(table(write(tmp_path, name, content)), Counter(), skip=False)]


def test_a_repeated_column_is_refused(tmp_path: Path) -> None:
    columns = pyarrow.Table.from_arrays([pyarrow.array(["x"]), pyarrow.array(["y"])], names=["a", "a"])
    pyarrow.parquet.write_table(columns, tmp_path / "c.parquet")
    frame = pd.DataFrame([["one", "x", "y"]], columns=["text", "a", "a"])
    for rows in (lambda: table(tmp_path / "c.parquet"), lambda: Rows("train", frame, [("text",)])):
        with pytest.raises(UserError, match=r"(c\.parquet|train): found several columns 'a'; rename the columns"):
            [*rows()]


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.csv: no such file; give an existing \.csv file"):
        table(tmp_path / "absent.csv")


def test_a_damaged_parquet_page_is_reported_with_its_row(tmp_path: Path) -> None:
    file = parquet(tmp_path, {"text": [f"text {i}" for i in range(100)]})
    content = bytearray(file.read_bytes())
    content[4:40] = b"\xff" * 36  # the header of the first page
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.parquet.*; write the file again") as refusal:
        list(table(file))
    assert "\n" not in str(refusal.value)


def test_binary_cells_are_reported() -> None:
    assert text_fault("fine", "text") is None
    assert text_fault(3, "text") == ("expected text in 'text', found 3", "write a string")
    assert text_fault(None, "text") == ("expected text in 'text', found None", "write a string")
    for value, message in ((" ", "blank"), ("a\0", "NUL"), ("\ud800", "half a character")):
        fault = text_fault(value, "text")
        assert fault is not None
        assert message in fault[0]
    fault = character_fault("x" * (LONGEST + 1), "the context")
    assert fault == ("the context is longer than 1,000,000 characters: it has 1,000,001", "split it into several texts")


def test_model_input_is_checked_before_tokenizing() -> None:
    check_text("x" * LONGEST, "text 1")
    with pytest.raises(ValueError, match="text 1 has 1,000,001 characters; give at most 1,000,000"):
        check_text("x" * (LONGEST + 1), "text 1")


def test_unsupported_parquet_values_are_faults_of_their_rows(tmp_path: Path) -> None:
    halves = [(0).to_bytes(4, "little") + (2).to_bytes(4, "little") + (3).to_bytes(4, "little"), b"\xff\xfea"]
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 2, [None, *map(pyarrow.py_buffer, halves)])
    dates = pyarrow.array([2**30, 0], pyarrow.date32())
    for column, fault in ((broken, "invalid UTF-8"), (dates, "unreadable value: days=")):
        pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
        bad, good = table(tmp_path / "a.parquet")
        assert bad.fault.startswith(fault)
        assert (bad.number, good.number, good.fault) == (1, 2, "")


def test_damaged_column_metadata_are_reported(tmp_path: Path) -> None:
    """Reading the metadata of a damaged column raises an uncaught exception in pyarrow's C++ code."""
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"tokens": [[1, 2], [3, 4]]}), file)
    content = file.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    footer = content[-8 - length : -8].replace(
        b"\x29\x26\x04\x04", b"\x29\x16\x04"
    )  # a histogram of two numbers, of one
    assert len(footer) == length - 1
    file.write_bytes(content[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match=r"a\.parquet: not a Parquet file \(Repetition level histogram size mismatch"):
        next(table(file))
