"""Page of a lens in a browser: pointer, keyboard, colors and screen sizes, for a text and for an image."""

from typing import Any

import numpy as np
import pytest

from manyheads.analysis.lens import EMBEDDING, Lens
from manyheads.core.tap import Grid
from tests.support.browser import Browser

WORDS = ("cat", "dog", "<b>", "fish")


def lens(tokens: tuple[str, ...], **image: Any) -> Lens:
    """Return a lens of three layers whose answers are the words in turn."""
    random, shape = np.random.default_rng(0), (3, len(tokens))
    words = [[[WORDS[(at + layer + k) % 4] for k in range(3)] for at in range(shape[1])] for layer in range(3)]
    p = np.sort(random.random((*shape, 3)) / 3)[..., ::-1].astype(np.float32)
    ranks = random.integers(1, 5, shape)
    answers = tuple(ranked[0] for ranked in words[-1])
    kl = random.random(shape, dtype=np.float32)
    ranks[-1], kl[-1] = 1, 0
    return Lens("runs/gpt", "a text", tokens, (EMBEDDING, 0, 1), words, p, answers, ranks, kl, **image)


@pytest.fixture
def text() -> Lens:
    return lens(tuple(f"token{at}" for at in range(30)))


@pytest.fixture
def image() -> Lens:
    tokens = ("[class]", *(f"{y},{x}" for y in range(3) for x in range(3)))
    picture = np.random.default_rng(1).integers(0, 255, (9, 9, 3), dtype=np.uint8)
    return lens(tokens, grid=Grid(3, 3, ("[class]",)), picture=picture)


def said(browser: Browser) -> str:
    return browser.texts(".said .readout")[0]


def test_a_cell_in_focus_shows_its_words_rank_and_divergence(opened: Any, text: Lens) -> None:
    browser = opened(text)
    assert said(browser).startswith("layer 1 at position 29, “token29”")
    browser.move('[data-at="1-4"]')
    assert said(browser).startswith(
        f"layer 0 at position 4, “token4” · rank of the answer “{text.answers[4]}”: {text.ranks[1, 4]}"
    )
    assert browser.texts(".said .what") == text.words[1][4]
    browser.click('[data-at="0-2"]')
    browser.move('[data-at="2-5"]')  # the click holds the cell
    assert said(browser).startswith("embedding at position 2")
    browser.press("Escape")
    browser.move('[data-at="2-5"]', (0.3, 0.3))
    browser.move('[data-at="2-6"]')
    assert said(browser).startswith("layer 1 at position 6")


def test_arrow_keys_move_between_layers_and_positions(opened: Any, text: Lens) -> None:
    browser = opened(text)
    browser.run("document.querySelector('[data-at=\"1-4\"]').focus()")
    for key, place in (
        ("ArrowUp", "2-4"),
        ("ArrowUp", "2-4"),
        ("ArrowRight", "2-5"),
        ("ArrowDown", "1-5"),
        ("ArrowLeft", "1-4"),
    ):
        browser.press(key)
        assert browser.run("document.activeElement.dataset.at") == place
    assert browser.count('.cell[tabindex="0"]') == 1


def test_arrow_keys_move_over_the_patches_of_an_image(opened: Any, image: Lens) -> None:
    browser = opened(image)
    assert browser.count(".patches") == 3
    browser.run("document.querySelector('[data-at=\"1-0\"]').focus()")
    for key, place in (("ArrowDown", "1-1"), ("ArrowDown", "1-4"), ("ArrowRight", "1-5"), ("ArrowUp", "1-2")):
        browser.press(key)
        assert browser.run("document.activeElement.dataset.at") == place
    assert "layer 0 at the patch in row 0, column 1" in said(browser)


def test_colors_show_the_chosen_value(opened: Any, text: Lens) -> None:
    browser = opened(text)
    color = "getComputedStyle(document.querySelector('[data-at=\"{}\"]')).backgroundColor"
    browser.click('input[value="rank"] + span')
    assert browser.texts(".ramp") == [f"rank {text.ranks.max()}1"]
    shades = {browser.run(color.format(f"2-{at}")) for at in range(30)}
    assert shades == {"rgb(8, 48, 107)"}  # the answer has rank 1 in the last layer
    worst = np.argmax(text.ranks[0])
    assert browser.run(color.format(f"0-{worst}")) == "rgb(246, 247, 249)"
    browser.click('input[value="KL"] + span')
    assert {browser.run(color.format(f"2-{at}")) for at in range(30)} == {"rgb(8, 48, 107)"}
    browser.click("#theme", (0.5, 0.5))
    browser.click("#theme", (0.5, 0.5))
    assert browser.run(color.format("2-0")) == "rgb(214, 236, 255)"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("kind", ["text", "image"])
def test_no_page_is_wider_than_the_screen(opened: Any, request: Any, kind: str, width: int, dark: bool) -> None:
    browser = opened(request.getfixturevalue(kind), width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.count(".cell") == 3 * len(request.getfixturevalue(kind).tokens)


def test_a_page_has_a_limit(text: Lens) -> None:
    with pytest.raises(ValueError, match="the page has 45,000 cells, layers times tokens: expected at most 30,000"):
        lens(tuple("a" * 15_000)).page("never.html")
