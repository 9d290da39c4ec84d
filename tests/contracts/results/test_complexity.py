"""docs/measured/complexity.md: the paper's table next to values of our records, and their figures."""

import pytest

from lab import complexity_page as page


def test_without_records_the_papers_table_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "records", lambda kind="runs": [])
    assert "| rnn | n d² | n | n |\n" in page.layers_table()
    assert page.influence_part() == page.times_table() == "No record exists yet."


def test_every_layer_of_the_table_is_measured() -> None:
    from benchmarks import growth as bench

    assert list(page.TABLE_1) == list(bench.LAYERS)
    assert (page.FORWARD, page.BACKWARD) == (bench.FORWARD, bench.BACKWARD)
