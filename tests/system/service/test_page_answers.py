"""The page at `/`: long texts, errors in its words, bars and numbers on one scale, saved views, and two inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import directory
from tests.support import services
from tests.support.browser import BINARY
from tests.support.map_examples import saved
from tests.support.service_browser import ServiceBrowser
from tests.support.services import Running, bert, client, drawn, language_model, serving, translator

LONG = "the cat sat on the mat " * 20
SHARES = "[...document.querySelectorAll('#result .bar')].map((bar) => Number(bar.style.getPropertyValue('--share')))"


def confident(path: Path) -> Path:
    """Write a detector that finds an object with every query."""
    detector = manyheads.load(services.detector(path))
    with torch.no_grad():
        detector.model.classifier.bias[0] = 9
    directory.save(path, detector.model, preprocessing=detector.preprocessing.as_dict())
    return path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("answers")
    vit = drawn("vit/ti4-32", image_size=32, patch=16, width=16, layers=1, heads=2, labels=("dots", "lines"))
    directory.save(folder / "see", vit)
    models = [
        language_model(folder / "lm"), bert(folder / "tell", head="sequence", labels=("good", "bad")),
        bert(folder / "mask", head="masked_lm"), translator(folder / "en-de"), folder / "see",
        bert(folder / "rate", head="sequence", labels=("score",), target="regression"), confident(folder / "find"),
    ]  # fmt: skip
    with serving(folder / "log", *models) as service:
        yield service


@pytest.fixture(scope="module")
def browser() -> Iterator[ServiceBrowser]:
    if BINARY is None:
        pytest.skip("no Chromium on the path: install chromium to test the page by clicking")
    opened = ServiceBrowser()
    yield opened
    opened.close()


def visit(browser: ServiceBrowser, running: Running, **state: str) -> None:
    browser.visit(f"{running.url}/#{urlencode(state)}")


def done(browser: ServiceBrowser) -> None:
    browser.wait("document.querySelector('#state').textContent === 'Done'")


def error(browser: ServiceBrowser) -> str:
    browser.wait("!document.querySelector('#told').hidden")
    return str(browser.texts("#told")[0])


def test_a_long_completion_opens_at_the_last_full_page(browser: ServiceBrowser, running: Running) -> None:
    visit(browser, running, model="lm", text="the cat sat on " * 16, tokens="6", temperature="0")
    done(browser)
    browser.wait("document.querySelector('.pager') !== null")
    (said,) = browser.texts(".pager span")
    first, last = said.removeprefix("tokens ").split(" of ")[0].split("–")
    assert int(last) - int(first) + 1 == 64
    assert said.endswith(f" of {last}")
    assert browser.count(".tokens.q .token.on") == 1


def test_a_view_of_the_attention_is_saved(browser: ServiceBrowser, running: Running) -> None:
    visit(browser, running, model="en-de", text="the cat sat on the mat")
    browser.wait("document.querySelector('.panel .readout') !== null")
    assert saved(browser, "svg").startswith(b"<svg")
    assert saved(browser, "png").startswith(b"\x89PNG")


def test_a_long_text_is_cut_on_request(browser: ServiceBrowser, running: Running) -> None:
    visit(browser, running, model="tell", text=LONG)
    assert error(browser).startswith("First text: has 122 tokens")
    assert "truncate" not in error(browser)
    browser.click("#field-cut")
    browser.click("#run")
    done(browser)
    assert browser.count("#result .ranking li") == 2
    browser.wait("!document.querySelector('#note').hidden")
    assert "cut" not in browser.texts("#note")[0]
    assert "cut=yes" in browser.run("location.hash")


def test_an_error_names_the_field_of_the_page(browser: ServiceBrowser, running: Running) -> None:
    visit(browser, running, model="en-de", text=f"the cat\n{LONG}")
    assert error(browser).startswith("Text in English, line 2: ")
    visit(browser, running, model="mask", verb="embed", text="the cat", other=LONG)
    assert error(browser).startswith("Another text, to compare it with: ")


def test_bars_have_the_scale_of_their_numbers(browser: ServiceBrowser, running: Running) -> None:
    visit(browser, running, model="mask", text="the cat [MASK]")
    done(browser)
    numbers = [float(each.strip("%<")) / 100 for each in browser.texts("#result .amount")]
    assert browser.run(SHARES) == pytest.approx(numbers, abs=0.006)
    visit(browser, running, model="en-de", text="the cat")
    done(browser)
    assert browser.count("#result .bar") == 0  # log-probabilities have no end


def test_two_images_are_compared(browser: ServiceBrowser, running: Running, tmp_path: Path) -> None:
    for seed in (0, 1):
        pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{seed}.png")
    visit(browser, running, model="see", verb="embed")
    browser.drop(".of-image", tmp_path / "0.png")
    done(browser)
    assert browser.texts("#result .said") == ["A vector of 16 numbers."]
    browser.drop(".of-image:nth-child(2)", tmp_path / "1.png")
    browser.wait("document.querySelector('#result .amount') !== null")
    similarity = float(browser.texts("#result .amount")[0])
    assert -1 <= similarity < 1
    assert browser.run(SHARES) == [pytest.approx(max(0, similarity), abs=0.001)]


def test_a_model_with_one_label_shows_its_number(browser: ServiceBrowser, running: Running) -> None:
    visit(browser, running, model="rate", text="the cat")
    done(browser)
    assert browser.texts("#about") == ["predicts a number"]
    with client(running) as http:
        answer = http.post("/classify", json={"model": "rate", "texts": ["the cat"]}).json()
    assert browser.texts("#result .said") == [f"{answer['results'][0]['value']:.4f}"]


def test_a_box_shows_where_its_query_looks(browser: ServiceBrowser, running: Running, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (64, 64), dtype=np.uint8)).save(tmp_path / "scene.png")
    visit(browser, running, model="find")
    browser.drop(".of-image", tmp_path / "scene.png")
    done(browser)
    browser.wait("document.querySelector('.panel .readout') !== null")
    assert browser.count(".boxes rect") == browser.count("#result .ranking li") == 9
    browser.run("document.querySelectorAll('.boxes rect')[1].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert "held" in browser.run("document.querySelector('.readout').innerText")
