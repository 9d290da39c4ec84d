"""The command that measures every growth curve."""

import json
from typing import Any

import pytest

from benchmarks import growth as bench
from benchmarks.__main__ import main
from tests.contracts.bench.test_growth import SMALL


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setitem(bench.DECODER, "width", 16)


def test_the_command_measures_every_curve(small: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["growth", "--json", "--threads", "1"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["bench"] == ["growth"]
    assert [(c["name"], c["against"]) for c in found["curves"] if c["part"] == "decoder"] == [
        ("reading a prompt", "length"), ("the next token", "length"), ("the next token", "batch"),
        ("the next token", "vocabulary"), ("a translation of 16 tokens", "beam"),
    ]  # fmt: skip
    for curve in found["curves"]:
        assert len(curve["at"]) == len(curve["seconds"]) == len(curve["bytes"]) == 2
        assert all(least <= s <= most for s, (least, most) in zip(curve["seconds"], curve["spread"], strict=True))
        assert all(size > 0 for size in curve["bytes"])
    vocabulary = next(curve for curve in found["curves"] if curve["against"] == "vocabulary")
    assert vocabulary["bytes"][1] - vocabulary["bytes"][0] == pytest.approx(100 * 16 * 4, rel=0.1)  # the embedding
