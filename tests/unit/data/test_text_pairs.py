"""Pairs of similar texts: columns, kinds, scores, faulty rows, data in memory and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyheads.data.readers.text_pairs import PairColumns, TextPairs, read_text_pairs
from manyheads.data.sources.corpora import TextPairSource
from manyheads.errors import UserError


def jsonl(folder: Path, rows: list[dict[str, Any]], name: str = "train.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": "a", "pair": "b"}, "pairs"),
        ({"anchor": "a", "positive": "b", "negative": "c"}, "triplets"),
        ({"sentence1": "a", "sentence2": "b", "score": 4.5}, "scores"),
        ({"question": "a", "answer": "b", "id": 7}, "pairs"),
    ],
)
def test_the_columns_determine_the_kind(tmp_path: Path, row: dict[str, Any], kind: str) -> None:
    data = read_text_pairs(jsonl(tmp_path, [row]))
    assert (data.kind, data.texts, data.pairs) == (kind, ["a"], ["b"])
    assert data.negatives == (["c"] if kind == "triplets" else [])
    assert data.scores == ([4.5] if kind == "scores" else [])
    assert data.unused == (("id",) if "id" in row else ())


def test_other_columns_are_selected_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\ttwo\tlabel\tscore\nx\ty\t1\t0\n")
    data = read_text_pairs(tmp_path / "a.tsv", PairColumns("one", "two", score="label"))
    assert (data.scores, data.unused) == ([1.0], ("score",))


@pytest.mark.parametrize(
    ("row", "columns", "fault"),
    [
        ({"text": "a", "label": "b"}, PairColumns(), "expected two columns of texts, such as `text` and `pair`"),
        ({"text": "a", "pair": "b"}, PairColumns(score="s"), "expected a column 's', found 'text', 'pair'"),
        ({"text": "a", "other": "b"}, PairColumns(text="text"), "set columns.text=NAME columns.pair=NAME"),
        ({"text": "a", "pair": " "}, PairColumns(), "'pair' is blank"),
        ({"text": "a", "pair": "b", "score": 5.1}, PairColumns(), "score out of range: found 5.1 in 'score'"),
        ({"text": "a", "pair": "b", "score": -0.1}, PairColumns(), "score out of range: found -0.1"),
        ({"text": "a", "pair": "b", "score": "high"}, PairColumns(), "expected a number in 'score', found 'high'"),
        ({"text": "a", "pair": "b", "negative": "c", "score": 1}, PairColumns(), "expected one of them"),
    ],
)
def test_faulty_rows_are_one_line(tmp_path: Path, row: dict[str, Any], columns: PairColumns, fault: str) -> None:
    with pytest.raises(UserError) as error:
        read_text_pairs(jsonl(tmp_path, [row]), columns)
    assert fault in str(error.value)
    assert str(error.value).count("\n") == 0


def test_skipped_rows_leave_texts_and_scores_aligned(tmp_path: Path) -> None:
    rows = [{"text": str(i), "pair": "b", "score": [0.1, 9, 0.3][i]} for i in range(3)]
    data = read_text_pairs(jsonl(tmp_path, rows), skip_bad_lines=True)
    assert list(zip(data.texts, data.scores, strict=True)) == [("0", 0.1), ("2", 0.3)]
    assert sum(data.skips.values()) == 1


def test_training_data_without_different_texts_are_refused(tmp_path: Path) -> None:
    equal = jsonl(tmp_path, [{"text": str(i), "pair": str(i)} for i in range(3)])
    with pytest.raises(UserError, match=r"both texts are equal in all 3 pairs.*columns 'text' and 'pair'"):
        TextPairSource(data=str(equal)).read()
    single = jsonl(tmp_path, [{"text": "a", "pair": "b"}], "one.jsonl")
    with pytest.raises(UserError, match="found one pair: expected at least two"):
        TextPairSource(data=str(single)).read()
    repeated = jsonl(tmp_path, [{"text": str(i), "pair": "b"} for i in range(3)], "repeated.jsonl")
    with pytest.raises(UserError, match="the second text of all 3 pairs is 'b': expected different texts"):
        TextPairSource(data=str(repeated)).read()


def test_scores_are_in_all_splits_or_in_none(tmp_path: Path) -> None:
    jsonl(tmp_path, [{"text": str(i), "pair": "b", "score": 1} for i in range(4)])
    jsonl(tmp_path, [{"text": "a", "pair": "b"}], "test.jsonl")
    with pytest.raises(UserError, match="found a similarity of each pair in one and none in the other"):
        TextPairSource(data=str(tmp_path)).read()


def test_the_report_has_the_kind_equal_texts_and_unused_columns(tmp_path: Path) -> None:
    rows = [{"text": str(i), "pair": str(i if i < 3 else -i), "label": 1} for i in range(30)]
    source = TextPairSource(data=str(jsonl(tmp_path, rows)), validation=str(jsonl(tmp_path, rows[3:4], "v.jsonl")))
    report = source.report(source.read())
    assert "kind" in report
    assert "3 (10.0%)" in report
    assert "warning: 3 of 30 training pairs have two equal texts" in report
    assert "every row counts as a pair of similar texts: 'label' not used" in report


def test_repeated_texts_and_equal_negatives_are_reported(tmp_path: Path) -> None:
    rows = [{"text": str(i), "pair": f"b{i % 3}", "negative": f"b{i % 4}"} for i in range(30)]
    source = TextPairSource(data=str(jsonl(tmp_path, rows)), validation=str(jsonl(tmp_path, rows[:4], "v.jsonl")))
    report = source.report(source.read())
    assert "warning: 27 of 30 second texts repeat an earlier one" in report
    assert "warning: 9 of 30 hard negatives equal the second text of their pair" in report


def test_tuples_in_memory_are_pairs_or_triplets() -> None:
    source = TextPairSource(data="data in memory", memory={"train": [("a", "b", "c"), ("d", "e", "f")] * 30})
    splits = source.read()
    assert splits.train.kind == "triplets"
    assert isinstance(splits.validation, TextPairs)


def test_the_embedded_pairs_are_phrases_and_translations() -> None:
    splits = TextPairSource(size=1000, seed=1).read()
    assert len(splits.train) == 1000
    assert splits.test is not None
    assert splits.train.kind == "pairs"
