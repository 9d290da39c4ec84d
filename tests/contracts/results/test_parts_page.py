"""The tables and pictures of docs/papers/ablations.md, from records of few rows and seeds, and without records."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import parts_page


def record(bleu: float, losses: list[float]) -> dict[str, Any]:
    curve = [{"step": 100 * step, "loss": loss} for step, loss in enumerate(losses, 1)]
    metrics = {"bleu_moses_lc": {"value": bleu}, "loss": {"value": losses[-1]}}
    return {"recipe": "translation/parts", "metrics": metrics, "curve": curve}


RECORDS = {
    "parts-3-1-full": record(30.0, [5.0, 4.0, 3.0, 2.9]), "parts-3-2-full": record(32.0, [5.0, 4.0, 3.2, 3.0]),
    "parts-3-1-no-scale": record(29.0, [5.5, 4.5, 3.5, 3.0]), "parts-3-2-no-scale": record(30.0, [5.5, 4.5, 3.5, 3.0]),
    "parts-3-1-post": record(20.0, [6.0, 5.0, 4.5, 4.1]), "parts-3-1-post-batch": record(18.0, [6.0, 5.0, 4.5, 4.2]),
    "parts-12-1-none": record(0.0, [float("inf"), 1e5, float("inf"), float("inf")]), "rivals-fr-lstm-1": {},
    "parts-12-more-1-no-scale": record(1.0, [5.5, 4.5]), "parts-3-long-1-full": record(40.0, [3.0, 2.0]),
}  # fmt: skip


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    monkeypatch.setattr(parts_page.results_keep, "kept", lambda: found)
    monkeypatch.setattr(parts_page, "RESULTS", Path("nowhere"))
    parts_page.records.cache_clear()
    yield found
    parts_page.records.cache_clear()


def test_a_page_without_records_has_no_tables(kept: dict[str, Any], tmp_path: Path) -> None:
    assert parts_page.main_tables() == parts_page.short_table() == "No record exists yet."
    assert parts_page.curves_picture() == parts_page.gradients_picture() == ""
    assert parts_page.draw_curves(tmp_path / "a.png") is parts_page.draw_gradients(tmp_path / "b.png") is None


def test_the_tables_compare_rows_with_the_full_model(kept: dict[str, Any], tmp_path: Path) -> None:
    kept.update(RECORDS)
    three, twelve, long = parts_page.main_tables().split("\n\n")
    assert three.splitlines()[0].startswith(
        "| 3 + 3 layers, without | BLEU | change of BLEU | validation loss | steps to"
    )
    assert "| nothing (pre-norm) | 31.0 (18.3 to 43.7) |  | 2.95 (2.31 to 3.59) | 200 | 2 |" in three
    assert "| scale of the scores | 29.5 (23.1 to 35.9) | -1.5 (-7.9 to 4.9) | 3.00 (3.00 to 3.00) | 250 | 2 |" in three
    # The row with post-norm is compared with the full model with post-norm; neither reaches the loss.
    assert "| 18.0 | -2.0 | 4.20 | not reached | 1 |" in three
    assert "| nothing (post-norm) | 20.0 |  | 4.10 | not reached | 1 |" in three
    assert "| normalization | 0.0 |  | diverged | not reached | 1 |" in twelve
    assert "| scale of the scores | 1.0 |  | 4.50 |" in twelve  # a row that was trained later
    assert long.startswith("| 3 + 3 layers, 2,000 steps, without |")
    assert "| nothing (pre-norm) | 40.0 |  | 2.00 |" in long
    short = parts_page.short_table().splitlines()
    assert short[0] == "| without | BLEU, 3 + 3 layers | BLEU, 12 + 12 layers | BLEU, 3 + 3 layers, 2,000 steps |"
    assert short[2] == "| nothing (pre-norm) | 31.0 (18.3 to 43.7) |  | 40.0 |"
    assert "| scale of the scores | -1.5 (-7.9 to 4.9) |  |  |" in short
    assert parts_page.draw_curves(tmp_path / "a.png") == tmp_path / "a.png"
    assert parts_page.curves_picture()
