"""Lowered models next to plain PyTorch: a row for each precision, with the route and the error."""

import pytest

from benchmarks import lowered as bench
from benchmarks.ours import precisions


@pytest.mark.parametrize("name", ["bert/tiny, 4 x 16", "transformer/tiny, 2 sentences, greedy"])
def test_every_precision_is_compared_with_plain_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TURN", 0.0)
    monkeypatch.setattr("benchmarks.workers.SETTLE", 0.0)
    record = bench.lowered(threads=1, repeats=2, cases={name: bench.CASES[name]})
    assert [row["precision"] for row in record["rows"]] == [*precisions()]
    for row in record["rows"]:
        assert row["case"] == name
        assert row["route"]
        assert row["against"] == f"PyTorch {'float32' if row['precision'] == 'int8' else row['precision']}"
        assert row["ratio"] > 0
        assert 0 <= row["error"] < 0.1
    assert bench.slower([{"case": "a", "precision": "bf16", "ratio": 0.5}, {"ratio": 1.0}]) == ["a, bf16 (0.50)"]
