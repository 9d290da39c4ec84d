"""docs/papers/capacity.md: slopes, intervals and picture, with and without records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import capacity_page as page
from papers.capacity.recipes import SIZES, WIDTHS
from tests.paths import ROOT

SLOPES = {"lstm": -0.1, "convolution": -0.2, "transformer": -0.3}


def records(seeds: int = 3) -> dict[str, Any]:
    """Return records whose losses are on lines with these slopes. Each seed has another slope and another constant."""
    found = {}
    for architecture in WIDTHS:
        for size in SIZES:
            for seed in range(1, seeds + 1):
                parameters = int(float(size) * 1e6)
                loss = 4 + seed / 10 + (SLOPES[architecture] + seed / 100) * np.log10(parameters)
                name = f"capacity-{seed}-{architecture}-{size.replace('.', '-')}"
                found[name] = {"non_embedding": parameters, "metrics": {"loss": {"value": float(loss)}}}
    return found


def test_tables_and_picture_show_the_slopes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page.results_keep, "kept", records)
    found = page.slopes()
    assert {name: [round(s, 6) for s in seeds.values()] for name, seeds in found.items()} == {
        "lstm": [-0.09, -0.08, -0.07], "convolution": [-0.19, -0.18, -0.17], "transformer": [-0.29, -0.28, -0.27],
    }  # fmt: skip
    assert page.slopes(2)["lstm"] == pytest.approx(found["lstm"])
    lines = page.slopes_table().splitlines()
    # the half width is t = 4.303 times the standard deviation 0.01 over the root of 3
    assert lines[2].startswith("| LSTM | -0.080 ± 0.025 | -0.080 ± 0.025 |")
    assert lines[5] == "| Transformer minus LSTM | -0.200 ± 0.000 | -0.200 ± 0.000 | shown |"
    assert lines[6] == "| Transformer minus convolutions | -0.100 ± 0.000 | -0.100 ± 0.000 | shown |"
    losses = page.losses_table().splitlines()
    assert len(losses) == 2 + len(SIZES)
    assert losses[2].startswith("| 0.1 M | 3.800 ± ")
    assert losses[2].endswith("| 3 |")
    assert page.picture()
    assert page.draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_without_records_the_page_has_no_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page.results_keep, "kept", dict)
    assert [part() for part in page.PARTS] == [page.MISSING, "", ""]
    assert page.draw(tmp_path / "a.png") is None


def test_one_seed_has_no_interval_and_an_incomplete_one_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    one = records(1)
    monkeypatch.setattr(page.results_keep, "kept", lambda: one)
    assert "| LSTM | -0.090 | -0.090 |" in page.slopes_table()
    assert "| Transformer minus LSTM | -0.200 | -0.200 | not decided |" in page.slopes_table()
    one.pop("capacity-1-lstm-0-25")
    assert page.slopes()["lstm"] == {}
    assert "| 0.25 M |  | " in page.losses_table()
    assert "| LSTM |  |  |  |" in page.slopes_table()
    assert "| Transformer minus LSTM |  |  |  |" in page.slopes_table()


def test_the_records_of_two_entries_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = {name.replace("capacity-", "capacity-long-"): record for name, record in records(2).items()}
    monkeypatch.setattr(page.results_keep, "kept", lambda: records(1) | longer)
    assert page.differences()["lstm"] == pytest.approx([-0.2])
    assert page.differences(entry="capacity-long")["lstm"] == pytest.approx([-0.2, -0.2])


def test_slopes_with_one_seed_each_equal_numpy() -> None:
    points = [page.Point(n, loss) for n, loss in ((114_240, 2.3), (256_032, 2.2), (695_552, 2.15), (2_079_360, 2.16))]
    x, y = np.log10([point.parameters for point in points]), [point.loss for point in points]
    assert page.slope(points) == pytest.approx(np.polyfit(x, y, 1)[0])


def test_the_page_has_the_counts_of_the_models() -> None:
    from tests.contracts.papers.test_capacity import counted

    text = (ROOT / "docs" / "papers" / "capacity.md").read_text(encoding="utf-8")
    sizes = counted()
    for size in SIZES:
        counts = " | ".join(f"{sizes[f'{architecture}-{size}']:,}" for architecture in WIDTHS)
        assert f"| {size} | {counts} |" in text
