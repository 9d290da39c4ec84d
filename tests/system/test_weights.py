"""`make weights` with random weights of the published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import weights
from tests.support.random_weights import write_data, write_models

FINE_TUNED = ("SST2", "MRPC")  # hours on a CPU


def test_models_of_the_published_sizes_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "RECORD", tmp_path / "weights.json")
    given = {**write_models(tmp_path, tiny=False), **write_data(tmp_path, classes=2)}
    for key in ("TREEBANK", "IMAGENET"):
        chosen = ("BERT", key) if key == "TREEBANK" else ("GPT2", "DEIT", key)
        weights.main([f"{name}={given[name]}" for name in chosen])
    found = json.loads((tmp_path / "weights.json").read_text())
    expected = [name for name, row in weights.ROWS.items() if not {*FINE_TUNED, "VIT"} & {*row.needs}]
    assert sorted(found) == sorted(expected)
    assert found["deit-imagenet"]["measured"].endswith("of 2")
