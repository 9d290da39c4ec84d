"""Tables that notebooks show."""

import numpy as np
import torch

from manyheads.analysis.heads.statistics import HeadStatistics
from manyheads.analysis.lens import Lens
from manyheads.displays import MAX_ROWS, Confusion, Record, Table, decimal, html_table


def test_a_table_escapes_text_and_aligns_numbers() -> None:
    html = html_table(["<name>", "score"], [["a & b", 0.5], [None, 1234]])
    assert "&lt;name&gt;" in html
    assert "a &amp; b" in html
    assert "<td style='text-align: right'>0.5000</td>" in html
    assert "<td style='text-align: right'>1,234</td>" in html
    assert "<td style='text-align: left'></td>" in html


def test_a_long_table_says_how_many_rows_follow() -> None:
    html = html_table(["n"], [[n] for n in range(MAX_ROWS + 5)])
    assert html.count("<tr>") == MAX_ROWS + 1
    assert "5 more rows" in html


def test_rows_with_other_keys_share_one_table() -> None:
    table = Table([{"a": 1}, {"b": "x"}])
    assert table._repr_html_().count("<th") == 2 + 1  # with <thead>
    assert table == [{"a": 1}, {"b": "x"}]


def test_a_lens_is_a_page_and_statistics_are_a_table() -> None:
    words = [[["the", "a"], ["cat", "dog"]]] * 2
    half, ones = np.full((2, 2, 2), 0.5, np.float32), np.ones((2, 2), np.int64)
    lens = Lens("gpt", "the cat", ("the", "cat"), ("embedding", 0), words, half, ("the", "cat"), ones, half[0])
    assert repr(lens) == "Lens of 'the cat' (2 layers, 2 tokens)"
    assert lens.rows() == [["", "embedding", "layer 0"], ["the", "the 50%", "the 50%"], ["cat", "cat 50%", "cat 50%"]]
    assert lens._repr_html_().startswith('<iframe class="manyheads"')
    statistics = HeadStatistics()
    statistics.add({"layer.0": torch.eye(3).expand(1, 2, 3, 3)})
    assert repr(statistics) == "HeadStatistics of 2 heads"
    assert statistics._repr_html_().count("<tr>") == 3


def test_a_confusion_matrix_is_a_table_and_a_pair() -> None:
    confusion = Confusion(("<a>", "b"), np.array([[3, 1], [0, 2]]))
    labels, counts = confusion
    assert (labels, counts.sum()) == (("<a>", "b"), 6)
    html = confusion._repr_html_()
    assert "&lt;a&gt;</th><th style='text-align: left'>b</th>" in html
    assert "<td style='text-align: left'>b</td><td style='text-align: right'>0</td>" in html


def test_a_record_folds_long_dictionaries() -> None:
    record = Record({"recipe": "a", "few": {"x": {"y": 0.00002}}, "many": {f"k{i}": i for i in range(30)}})
    html = record._repr_html_()
    assert html.count("<details open>") == 2
    assert "<details><summary>many</summary>" in html
    assert "<td style='text-align: right'>2e-05</td>" in html
    assert dict(record) == record


def test_numbers_keep_their_digits() -> None:
    shown = [decimal(value) for value in (0.0, 0.97441, -3.25, 12345.6, 2e-5, float("nan"))]
    assert shown == ["0.0000", "0.9744", "-3.2500", "12,346", "2e-05", "nan"]
