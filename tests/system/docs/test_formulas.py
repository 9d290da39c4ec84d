"""Formulas of the site on the page of a phone."""

from pathlib import Path

import pytest

from scripts.check_site import clipped
from tests.support.browser import BINARY

FORMULA = "<mjx-container><mjx-math style='display: inline-block; width: {}px'>x</mjx-math></mjx-container>"
PAGE = "<script>var MathJax = {{startup: {{promise: Promise.resolve()}}}}</script><body style='margin: 0'>{}"


@pytest.mark.skipif(BINARY is None, reason="no Chromium")
def test_formulas_that_are_cut_off_are_found(tmp_path: Path) -> None:
    formulas = {"narrow": FORMULA.format(390), "wide": FORMULA.format(450), "none": "text"}
    formulas["table"] = f"<table><tr><td>{FORMULA.format(450)}</table>{FORMULA.format(10)}"
    for name, formula in formulas.items():
        (tmp_path / f"{name}.html").write_text(PAGE.format(formula))
    assert clipped(tmp_path) == ["wide.html: a formula ends at 450 of 400 pixels: break its line"]
