"""Example maps for the tests of the page, and readers of the page's content."""

import base64
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.maps import AttentionMaps, Layer
from manyheads.analysis.maps.sides import SPECIAL, Side
from tests.support.browser import Browser

WORDS = ("The", "dog", "that", "un", "wisely", "barked", "ran", "home")
ENGLISH = Side(("[CLS]", *WORDS, "[SEP]"), (SPECIAL, 0, 1, 2, 3, 3, 4, 5, 6, SPECIAL))
GERMAN = Side(("Der", "Hund", "lief", "heim", "</s>"), (0, 1, 2, 3, SPECIAL))


def weights(seed: int, *shape: int) -> NDArray[np.float32]:
    """Sharp maps (1, heads, queries, keys)."""
    raw = np.exp(4 * np.random.default_rng(seed).standard_normal((1, *shape)))
    return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)


def layers(seed: int, count: int, heads: int, queries: Side, keys: Side, steps: bool = False) -> list[Layer]:
    return [
        Layer(f"stack.{i}", 0 if steps else i, weights(seed + i, heads, len(queries), len(keys)), tuple(range(heads)),
              queries, keys, i + 1 if steps else None)
        for i in range(count)
    ]  # fmt: skip


def translation(seed: int = 0) -> AttentionMaps:
    axes = {"encoder": layers(seed, 2, 3, ENGLISH, ENGLISH), "cross": layers(seed + 9, 3, 2, GERMAN, ENGLISH)}
    return AttentionMaps(
        axes, "a translator", "The dog <b>ran</b> home {{data}} → Der Hund lief heim", None, ("cross",)
    )


def example() -> AttentionMaps:
    """Two layers of two heads on [CLS] un likely story [SEP], where "un" and "likely" are one word."""
    rng = np.random.default_rng(0)
    side = Side(("[CLS]", "un", "likely", "story", "[SEP]"), (SPECIAL, 0, 0, 1, SPECIAL))
    raw = rng.random((2, 1, 2, 5, 5)).astype(np.float32)
    layers = [
        Layer(f"layer.{i}", i, each / each.sum(-1, keepdims=True), (0, 1), side, side) for i, each in enumerate(raw)
    ]
    return AttentionMaps({"self": layers}, "a model", "unlikely story")


def image(shape: tuple[int, int] = (4, 4), count: int = 2) -> AttentionMaps:
    side = Side.patches(shape, ["[class]"])
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    return AttentionMaps({"self": layers(3, count, count, side, side)}, "a ViT", "cat.png", picture)


def halting(seed: int = 0, steps: tuple[int, ...] = (1, 3, 2, 2, 4)) -> AttentionMaps:
    """Return maps of a Universal Transformer with the given number of steps per position."""
    side = replace(GERMAN, steps=steps)
    keys = replace(ENGLISH, steps=(2,) * len(ENGLISH))
    axes = {"cross": layers(seed, max(steps), 2, side, keys, steps=True)}
    return AttentionMaps(axes, "universal", "text", None, ("cross",))


def data_of(html: str) -> Any:
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def caption(browser: Browser) -> str:
    return browser.texts(".caption strong")[0]


def readout(browser: Browser) -> tuple[str, list[str]]:
    return browser.texts(".readout p")[0], browser.texts(".readout .what")


def pick(browser: Browser, layer: int, head: int, **how: Any) -> None:
    browser.click(f'[data-at="thumb-{layer}:{head}"]', **how)


SAVED = """(async () => {
  let file = null;
  const make = URL.createObjectURL;
  URL.createObjectURL = (blob) => { file = blob; return make(blob); };
  HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };
  document.querySelector("[data-at=save-KIND]").click();
  for (let tries = 0; !file && tries < 500; tries++) await new Promise((done) => setTimeout(done, 20));
  if (!file) throw new Error("nothing was saved");
  URL.createObjectURL = make;
  return btoa([...new Uint8Array(await file.arrayBuffer())].map((byte) => String.fromCharCode(byte)).join(""));
})()"""


def saved(browser: Browser, kind: str) -> bytes:
    """Return the file that a page writes for the button PNG or SVG."""
    return base64.b64decode(browser.run(SAVED.replace("KIND", kind)))
