"""Browser fixture of the tests that click."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyheads.analysis.heat_maps import HeatMaps
from manyheads.analysis.lens import Lens
from manyheads.analysis.maps import AttentionMaps
from tests.support.browser import BINARY, Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if BINARY is None:
        pytest.skip("no Chromium on the path: install chromium to test the page by clicking")
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Open a page, and see that nothing failed while it was used."""

    def show(found: AttentionMaps | HeatMaps | Lens, *maps: AttentionMaps, **how: Any) -> Browser:
        file = tmp_path / "page.html"
        found.page(file, *maps)
        browser.open(file, **how)
        return browser

    yield show
    assert browser.failures == []
