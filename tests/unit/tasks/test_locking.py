"""Runs without training also lock their directory while they compute."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from manyheads.tasks.train import train
from manyheads.training.run_directory import locked

GROWTH = "manyheads.tasks.classification.receptive_field.draw"
ERROR = "manyheads.tasks.images.theorem.draw"


@pytest.mark.parametrize(
    ("recipe", "settings", "function"),
    [
        ("text-classification/receptive-field", {"layers": 1, "length": 5, "width": 4}, GROWTH),
        ("conv-attention/theorem", {"kernels": [3], "alphas": [1.0], "size": 8}, ERROR),
    ],
)
def test_the_directory_is_locked_during_a_run(
    recipe: str, settings: dict[str, Any], function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    def another() -> None:
        with pytest.raises(ValueError, match="is in use by the running process") as refusal, locked(tmp_path / "run"):
            pass
        refusals.append(str(refusal.value))

    def draw(*_: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(another).result()

    monkeypatch.setattr(function, draw)
    train(recipe, settings, out=tmp_path / "run")
    assert len(refusals) == 1
