"""Page of attention maps: uniform attention looks even, and the readout, the bars and the lines have one scale."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from manyheads.analysis.maps import AttentionMaps, Layer
from manyheads.analysis.maps.sides import Side
from tests.support.browser import Browser
from tests.support.map_examples import caption, pick, readout

TOKENS = 12
UNIFORM = np.full((TOKENS, TOKENS), 1 / TOKENS)
CAUSAL = np.tril(np.ones((TOKENS, TOKENS))) / np.arange(1, TOKENS + 1)[:, None]
SHARP = np.where(np.eye(TOKENS) > 0, 0.9, 0.1 / (TOKENS - 1))
PREVIOUS = np.eye(TOKENS, k=-1) + np.eye(TOKENS) * (np.arange(TOKENS) == 0)


def maps(*heads: NDArray[np.float64], side: Side | None = None) -> AttentionMaps:
    side = side or Side.positions(TOKENS)
    layer = Layer("x", 0, np.stack(heads)[None].astype(np.float32), tuple(range(len(heads))), side, side)
    return AttentionMaps({"self": [layer]}, "m", "twelve tokens")


@pytest.mark.parametrize("side", [Side.positions(TOKENS), Side.patches((3, 4))])
def test_a_uniform_head_is_named_and_is_pale(opened: Any, side: Side) -> None:
    browser: Browser = opened(maps(UNIFORM, CAUSAL, SHARP, PREVIOUS, side=side))
    for head, even in ((0, True), (1, True), (2, False), (3, False)):
        pick(browser, 0, head)
        assert browser.count(".caption .even") == even, head
    darkest = browser.run(
        "(() => { const of = (each) => {"
        " const { data } = each.getContext('2d').getImageData(0, 0, each.width, each.height);"
        " return Math.min(...data.filter((_, at) => at % 4 === 2)); };"
        " return [...document.querySelectorAll('.thumb canvas')].map(of); })()"
    )
    assert darkest[0] > darkest[2] + 40  # the blue of the darkest cell


def test_the_readout_says_that_a_token_looks_evenly(opened: Any) -> None:
    browser: Browser = opened(maps(UNIFORM, SHARP))
    pick(browser, 0, 0)
    browser.move('[data-at="q-3"]')
    assert readout(browser)[0] == "3 looks evenly at 12 tokens"
    pick(browser, 0, 1)
    browser.move('[data-at="q-3"]')
    assert readout(browser)[0] == "3 looks at"
    assert caption(browser) == "layer 0 · head 1"


def test_bars_and_numbers_have_one_scale(opened: Any) -> None:
    sharp = np.where(np.eye(TOKENS) > 0, 0.9998, 0.0002 / (TOKENS - 1))
    browser: Browser = opened(maps(UNIFORM, sharp))
    widths = (
        "[...document.querySelectorAll('.readout .bar')].map((bar) => Number(bar.style.getPropertyValue('--share')))"
    )
    pick(browser, 0, 0)
    browser.move('[data-at="q-3"]')
    assert browser.run(widths) == [pytest.approx(1 / TOKENS, rel=0.02)] * 5
    assert browser.run("share(0.0002)") == "<0.1%"
    assert browser.run("[share(0), share(0.0006), share(0.5)]") == ["0.0%", "0.1%", "50%"]
