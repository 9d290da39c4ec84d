"""The heat map of heads as parsers."""

from pathlib import Path

import pytest

from manyheads.analysis.heads.dependency import draw_heads
from tests.unit.analysis.heads.test_dependency import corpus


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_heat_map_is_drawn(tmp_path: Path, suffix: str) -> None:
    draw_heads(corpus(5, planted=True), tmp_path / f"a.{suffix}")
    assert (tmp_path / f"a.{suffix}").stat().st_size > 5000
