"""Heat maps of an analysis on the page of attention maps: pointer, keyboard, colors and screen sizes."""

from typing import Any

import numpy as np
import pytest

from manyheads.analysis.heat_maps import HeatMaps, Panel
from manyheads.analysis.maps import AttentionMaps
from manyheads.analysis.maps.layers import Layer
from manyheads.analysis.maps.sides import Side
from tests.support.browser import Browser

WORDS = tuple(f"word{at}" for at in range(30))
RANDOM = np.random.default_rng(0)
STATES = RANDOM.normal(size=(3, 30)).round(2)
PLACES = RANDOM.normal(size=(4, 4)).round(2)
PICTURE = RANDOM.integers(0, 255, (16, 16, 3), dtype=np.uint8)
LAYERS = ("embedding", "layer 0", "layer 1")


def found(*panels: Panel) -> HeatMaps:
    return HeatMaps("runs/gpt", "<b> against </b>", "effect", panels)


def said(browser: Browser) -> str:
    return browser.texts(".heat .readout")[0]


def number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_pointer_and_keys_read_the_values(opened: Any, width: int, dark: bool) -> None:
    browser = opened(found(Panel("residual stream", LAYERS, WORDS, STATES)), width=width, dark=dark)
    assert browser.texts(".heat .input") == ["<b> against </b>"]
    assert browser.texts(".heat .cell")[:30] == [
        f"{x:.2f}".replace("-", "−").replace("−0.00", "0.00") for x in STATES[0]
    ]
    browser.move(".heat tr:nth-child(2) td:nth-of-type(1) .cell")
    assert said(browser) == f"residual stream: layer 0 · word0 {number(STATES[1, 0])} effect"
    browser.run("document.querySelector('.heat .cell').focus()")
    for key, (row, column) in (("ArrowDown", (1, 0)), ("ArrowRight", (1, 1)), ("ArrowUp", (0, 1)), ("ArrowUp", (0, 1))):
        browser.press(key)
        assert said(browser).startswith(f"residual stream: {LAYERS[row]} · word{column} {number(STATES[row, column])}")
    assert browser.run("document.documentElement.scrollWidth") <= width  # the table scrolls, the page does not


def test_colors_tell_the_sign(opened: Any) -> None:
    browser = opened(found(Panel("tokens", ("cat",), ("a", "b", "c"), np.array([[1.0, 0.0, -1.0]]))))
    shades = "[...document.querySelectorAll('.heat .cell')].map((cell) => getComputedStyle(cell).backgroundColor)"
    assert browser.run(shades) == ["rgb(8, 48, 107)", "rgb(246, 247, 249)", "rgb(166, 54, 3)"]
    assert browser.texts(".heat .words .cell") == ["a", "b", "c"]


def test_an_image_lies_below_its_heat_map(opened: Any) -> None:
    names = tuple("0123")
    browser = opened(found(Panel("patches", names, names, PLACES, PICTURE)))
    browser.move(".heat .board", (0.9, 0.1))
    assert said(browser) == f"patches: row 0, column 3 {number(PLACES[0, 3])} effect"
    browser.run("document.querySelector('.heat .board').focus()")
    browser.press("ArrowDown", 2)
    assert said(browser).startswith(f"patches: row 2, column 3 {number(PLACES[2, 3])}")


def test_attention_maps_of_the_input_are_shown_below(opened: Any) -> None:
    side = Side(WORDS[:3], (0, 1, 2))
    layer = Layer("decoder.blocks.0.attention", 0, np.full((1, 2, 3, 3), 1 / 3, np.float32), (0, 1), side, side)
    maps = AttentionMaps({"self": [layer]}, "runs/gpt", "a text", None, ())
    browser = opened(found(Panel("residual stream", LAYERS, WORDS, STATES)), maps)
    assert browser.texts("h1") == ["Heat maps"]
    assert (browser.count(".heat"), browser.count("#panels .panel"), browser.count(".thumb")) == (1, 1, 2)
