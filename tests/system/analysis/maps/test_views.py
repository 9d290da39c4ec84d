"""Page of attention maps: its beginning, its link, saved views, one image on a narrow screen, and frames."""

import io
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyheads.analysis.maps import AttentionMaps
from manyheads.errors import UserError
from tests.support.browser import PATIENCE, Browser
from tests.support.map_examples import caption, image, pick, readout, saved, translation


def test_a_page_begins_with_the_head_that_its_author_names(opened: Any) -> None:
    browser: Browser = opened(translation().opened(axis="encoder", layer=1, head=0, view="matrix"))
    assert caption(browser) == "layer 1 · head 0"
    assert browser.count("canvas.cells") == 1
    assert "Encoder" in browser.texts(".tabs input:checked + span")
    browser = opened(translation().opened(layer=0))
    assert caption(browser) == "layer 0 · 2 heads"


@pytest.mark.parametrize("wrong", [{"layer": 7}, {"layer": 0, "head": 9}, {"head": 1}, {"axis": "self"}])
def test_a_beginning_that_does_not_exist_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="expected|has no"):
        translation().opened(**wrong)


def test_the_address_names_the_view_and_opens_it(opened: Any, browser: Browser, tmp_path: Path) -> None:
    opened(translation())
    assert browser.run("location.hash") == ""
    pick(browser, 1, 1)
    assert browser.run("location.hash") == "#axis=cross&layer=1&head=1&view=lines"
    browser.run("location.hash = '#layer=0&head=1&view=matrix'")
    browser.wait("document.querySelector('.caption strong').textContent === 'layer 0 · head 1'")
    assert browser.count("canvas.cells") == 1
    browser.run("location.hash = '#layer=99&head=text&view=constructor'")
    assert caption(browser) == "layer 0 · head 1"


def test_one_button_selects_the_mean_of_all_heads(opened: Any) -> None:
    browser: Browser = opened(translation())
    browser.click("[data-at=every]")
    assert caption(browser) == "6 heads"
    assert browser.count(".thumb[aria-pressed=true]") == 6


def test_a_view_is_saved_as_svg_and_png(opened: Any) -> None:
    for maps, view in ((translation(), "lines"), (translation(), "matrix"), (image(), "picture"), (image(), "matrix")):
        browser: Browser = opened(maps.opened(layer=1, head=0, view=view))  # type: ignore[arg-type]
        text = saved(browser, "svg").decode()
        parsed = browser.run(
            f"(() => {{ const made = new DOMParser().parseFromString({text!r}, 'image/svg+xml');"
            " return [made.querySelectorAll('parsererror').length, made.querySelectorAll('rect').length,"
            " made.querySelectorAll('path').length, made.querySelectorAll('image').length]; })()"
        )
        assert parsed[0] == 0
        cells = maps[next(iter(maps)) if view == "picture" or maps.picture is not None else "cross"][1].weights[0, 0]
        assert parsed[1] == (cells.size + 1 if view == "matrix" else 1)
        assert (parsed[2] > 5) == (view == "lines")
        assert (parsed[3] > 1) == (view == "picture")
        assert "layer 1 · head 0" in text
        assert browser.run("window.savedAs").endswith(f"layer-1-head-0-view-{view}.svg")
        with Image.open(io.BytesIO(saved(browser, "png"))) as picture:
            assert picture.width > 400
            assert len(set(picture.convert("RGB").resize((64, 64)).tobytes())) > 10  # not empty


def test_the_rows_and_columns_of_a_matrix_have_names(opened: Any) -> None:
    browser: Browser = opened(translation().opened(view="matrix"))
    assert browser.texts(".axis-name") == ["target token ↓", "source token →"]
    browser = opened(image().opened(view="matrix"))
    assert browser.texts(".axis-name") == ["query patch ↓", "key patch →"]
    assert [name for name in browser.texts(".down .label") if name] == ["[class]", "row 0", "row 1", "row 2", "row 3"]


def test_a_head_that_looks_evenly_is_pale(opened: Any) -> None:
    maps = translation()
    for layer in maps["cross"]:
        layer.weights[:] = 1 / layer.weights.shape[-1]
    browser: Browser = opened(maps.opened(layer=0, head=0, view="matrix"))
    shade = browser.run("[...document.querySelector('canvas.cells').getContext('2d').getImageData(3, 3, 1, 1).data]")
    assert min(shade[:3]) > 150
    assert browser.count(".caption .even") == 1


def test_a_narrow_screen_has_one_image(opened: Any) -> None:
    browser: Browser = opened(image(), width=400)
    shown = browser.run("[...document.querySelectorAll('.board')].map((each) => each.clientHeight > 0)")
    assert shown == [False, True]
    browser.click(".board.k", (0.9, 0.9))
    assert readout(browser)[0].startswith("row 3, column 3 looks")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_the_prediction_is_on_the_page(opened: Any) -> None:
    browser: Browser = opened(replace(image(), prediction=(("cat", 0.87), ("dog", 0.02))))
    assert browser.texts(".prediction") == ["prediction: cat 87%, dog 2.0%"]


def test_a_frame_has_the_height_of_its_page_and_the_theme_of_the_page_around_it(
    browser: Browser, tmp_path: Path
) -> None:
    long = AttentionMaps({"self": image()["self"] * 12}, "model", "title")
    file = tmp_path / "notebook.html"
    file.write_text(f"<body data-theme='dark'>{long._repr_html_()}<script>"
                    "document.documentElement.dataset.ready = ''</script></body>")  # fmt: skip
    browser.open(file)
    browser.wait("parseInt(document.querySelector('iframe').style.height) !== 760")
    assert browser.run("parseInt(document.querySelector('iframe').style.height)") > 400

    def brightness() -> float:
        browser.screenshot(tmp_path / "shot.png")
        with Image.open(tmp_path / "shot.png") as shot:
            return float(np.array(shot.convert("L"))[100:300, 100:300].mean())

    def wait(condition: Callable[[], bool]) -> bool:
        """Return True as soon as the condition holds: the page around the frame sends its theme in a message."""
        end = time.monotonic() + PATIENCE
        while not condition() and time.monotonic() < end:
            time.sleep(0.05)
        return condition()

    assert wait(lambda: brightness() < 80)
    browser.run("document.body.dataset.theme = 'light'")
    assert wait(lambda: brightness() > 200)
    assert browser.failures == []
