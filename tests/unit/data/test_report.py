"""Data reports, compared with brute-force counts."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.documents import Documents
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.data.readers.squad import Answer, Question, Questions
from manyheads.data.readers.texts import Texts
from manyheads.data.sources.report import (
    document_report,
    labeled_report,
    parallel_report,
    question_report,
    tag_report,
    text_report,
)  # fmt: skip

TRAIN = Pairs(
    ["a b c", "a b c", "a b c", "same", "long long"] + [f"word {i}" for i in range(95)],
    ["x y z", "x y z", "other", "same", "w " * 200] + [f"Wort {i}" for i in range(95)],
    skips={"f: blank": 2},
)


def rows(report: str) -> dict[str, list[str]]:
    """The cells of each row by its name."""
    cells = ([cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in report.splitlines())
    return {row[0]: row[1:] for row in cells if row}


def warnings(report: str) -> list[str]:
    return [line.removeprefix("warning: ") for line in report.splitlines() if line.startswith("warning: ")]


def test_parallel_text_is_reported() -> None:
    validation, test = Pairs(["a b c", "new"], ["else", "neu"]), Pairs(["word 3", "n"], ["Wort 3", "m"])
    report = parallel_report(SplitData(TRAIN, validation, test))
    table = rows(report)
    assert table["pairs"] == ["100", "2", "2"]
    assert table["skipped"] == ["2", "0", "0"]
    assert table["copied"][0] == table["ratio outliers"][0] == table["duplicate pairs"][0] == "1 (1.0%)"
    assert table["duplicate sources"][0] == "2 (2.0%)"
    assert table["source words (mean / 99% / longest)"][0].endswith("/ 3")
    assert table["target characters (mean / 99% / longest)"][0].endswith("/ 400")
    assert table["sources of the training data"] == ["", "1 (50.0%)", "1 (50.0%)"]
    assert warnings(report) == [
        f"1 of 2 {name} sources also occur in the training data: {name} scores are too optimistic"
        for name in ("validation", "test")
    ]


def test_suspicious_parallel_text_is_reported() -> None:
    few = Pairs(["c"], ["d"])
    for pairs, warning in (
        (Pairs(["a", "b"], ["a", "b"]),
         "2 of 2 training pairs have identical sides: check that the files are aligned and in order"),
        (Pairs(["a"] * 5, ["b"] * 5), "4 of 5 training pairs repeat an earlier one"),
    ):  # fmt: skip
        assert warnings(parallel_report(SplitData(pairs, few, None))) == [warning]
    assert warnings(parallel_report(SplitData(TRAIN, few, None))) == []


def test_labels_are_read() -> None:
    train = Labeled(["a", "b", "a", "c"], ["x", "y", "y", "x"])
    report = labeled_report(SplitData(train, Labeled(["b", "d"], ["y", "x"]), None))
    assert rows(report)["label: x"] == ["2 (50.0%)", "1 (50.0%)"]
    assert rows(report)["duplicate texts"] == ["1 (25.0%)", "0 (0.0%)"]
    assert warnings(report) == [
        "1 of 2 validation texts also occur in the training data: validation scores are too optimistic",
        "1 training texts occur again with another label",
    ]
    many = Labeled([f"text {i}" for i in range(9)], [str(i) for i in range(9)])
    assert rows(labeled_report(SplitData(many, many, many)))["3 more labels"] == ["3 (33.3%)"] * 3


def test_tags_are_read() -> None:
    train = Tagged([["a", "b"], ["c"], ["c"]], [["B-X", "I-X"], ["B-Y"], ["O"]])
    report = tag_report(SplitData(train, Tagged([["a", "b"]], [["B-X", "B-X"]]), None))
    assert rows(report)["entities: X"] == ["1", "2"]
    assert rows(report)["duplicate sentences"] == ["1 (33.3%)", "0 (0.0%)"]
    assert len(warnings(report)) == 1


def test_questions_are_answered() -> None:
    train = Questions([Question("1", "who ?", "a b c", (Answer("a", 0),), "T"), Question("2", "x", "a", (), "T")])
    report = question_report(SplitData(train, Questions([Question("3", "y", "a", (), "T")]), None))
    assert rows(report)["without an answer"] == ["1 (50.0%)", "1 (100.0%)"]
    assert rows(report)["words of a context (mean / 99% / longest)"][0] == "2.0 / 3 / 3"
    assert warnings(report) == ["1 articles of the validation data also occur in the training data"]


@pytest.mark.parametrize(
    ("report", "make"),
    [(text_report, Texts), (document_report, Documents)],
)
def test_running_text_is_reported(report: Callable[..., str], make: Callable[[list[str]], Any]) -> None:
    text = report(SplitData(make(["ab.", "ab.", "c"]), make(["c", "d"]), None))
    assert rows(text)["characters"] == ["7", "2"]
    assert next(cells for name, cells in rows(text).items() if "duplicate" in name) == ["1 (33.3%)", "0 (0.0%)"]
    assert "1 of 2 validation" in warnings(text)[0]


def test_multi30k_is_read_quickly(multi30k: Pairs) -> None:
    started = time.process_time()
    report = parallel_report(SplitData(multi30k, multi30k, None))
    assert time.process_time() - started < 2
    assert rows(report)["sources of the training data"][1] == "29,000 (100.0%)"


def test_labels_are_shown_unchanged() -> None:
    names = ["[/sad]", "[other]", ":smile:"]
    data = Labeled([f"text {i}" for i in range(3)], names)
    assert [f"label: {name}" for name in names] == sorted(
        (name for name in rows(labeled_report(SplitData(data, data, None))) if name.startswith("label: ")),
        key=lambda name: names.index(name.removeprefix("label: ")),
    )


def test_a_report_is_a_text_in_a_notebook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = str(parallel_report(SplitData(TRAIN, TRAIN, None)))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(parallel_report(SplitData(TRAIN, TRAIN, None))) == plain
    assert "pairs" in plain
