"""Page of attention maps: mouse and keyboard input in a real browser."""

import base64
import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manyheads.analysis.maps import AttentionMaps
from manyheads.analysis.maps.page import page
from manyheads.analysis.maps.sides import Side
from tests.support.browser import Browser
from tests.support.map_examples import (
    ENGLISH,
    GERMAN,
    caption,
    data_of,
    halting,
    image,
    layers,
    pick,
    readout,
    translation,
)


def test_hovering_a_token_shows_the_attention_of_the_head(opened: Any) -> None:
    maps = translation()
    browser: Browser = opened(maps)
    assert browser.count(".thumb") == 6  # cross-attention is shown first
    assert caption(browser).startswith("layer 2")  # of the last layer
    for layer, head, query in ((1, 0, 1), (0, 1, 3)):
        pick(browser, layer, head)
        assert caption(browser) == f"layer {layer} · head {head}"
        browser.move(f'[data-at="q-{query}"]')
        row = maps["cross"][layer].weights[0, head, query]
        subject, found = readout(browser)
        assert subject == f"{GERMAN.tokens[query]} looks at"
        best = np.argsort(-row)
        assert found[0] == ENGLISH.tokens[best[0]]
        (notes,) = browser.texts(f'[data-at="k-{best[0]}"] .share')
        assert float(notes.rstrip("%")) / 100 == pytest.approx(row[best[0]], abs=0.01)
    browser.move('[data-at="k-2"]')
    column = maps["cross"][0].weights[0, 1, :, 2]
    assert readout(browser)[0] == "dog is looked at by"
    assert readout(browser)[1][0] == GERMAN.tokens[column.argmax()]


def test_unnormalized_weights_are_shown_as_numbers(opened: Any) -> None:
    maps = translation()
    maps["cross"][2].weights[:] *= 2  # never negative, as of a non-local block that counts instead of a softmax
    browser: Browser = opened(maps)
    browser.move('[data-at="q-1"]')
    weight = maps["cross"][2].weights[0, 0, 1].max()
    amounts = browser.texts(".readout .amount")
    assert "%" not in "".join(amounts + browser.texts(".caption .range span"))
    assert float(amounts[0]) == pytest.approx(weight, rel=0.05)


def test_a_click_pins_and_escape_unpins(opened: Any) -> None:
    browser: Browser = opened(translation())
    browser.click('[data-at="q-1"]')
    browser.move('[data-at="q-3"]')
    assert readout(browser)[0].startswith("Hund looks at")
    browser.press("Escape")
    browser.move('[data-at="q-3"]', (0.5, 0.3))
    assert readout(browser)[0].startswith("heim looks at")


def test_several_heads_are_averaged_and_colored(opened: Any) -> None:
    maps = translation()
    browser: Browser = opened(maps)
    pick(browser, 0, 0)
    pick(browser, 1, 1, shift=True)
    assert caption(browser) == "2 heads"
    assert browser.count('.thumb[aria-pressed="true"]') == 2
    browser.move('[data-at="q-0"]')
    mean = (maps["cross"][0].weights[0, 0, 0] + maps["cross"][1].weights[0, 1, 0]) / 2
    assert readout(browser)[1][0] == ENGLISH.tokens[mean.argmax()]
    hues = browser.run(
        "[...document.querySelectorAll('.thumb[aria-pressed=true]')]"
        ".map((each) => each.style.getPropertyValue('--hue'))"
    )
    assert len(set(hues)) == 2
    browser.click('[data-at="row-2"]')
    assert caption(browser) == "layer 2 · 2 heads"


def test_sub_words_merge_as_in_python_without_special_tokens(opened: Any) -> None:
    maps = translation()
    browser: Browser = opened(maps)
    browser.click('input[data-at="attention-0"] + span')
    pick(browser, 0, 2)
    browser.click('[data-at="words"]')
    merged = maps.words()["encoder"][0]
    assert browser.texts(".tokens.q .text") == list(merged.queries.tokens)
    browser.move('[data-at="q-4"]')
    assert readout(browser)[0] == "unwisely looks at"
    row = merged.weights[0, 2, 4]
    assert readout(browser)[1][0] == merged.keys.tokens[row.argmax()]
    assert float(browser.texts(".readout .amount")[0].rstrip("%")) / 100 == pytest.approx(row.max(), abs=0.01)
    browser.click('[data-at="special"]')
    assert browser.texts(".tokens.k .text") == list(merged.keys.tokens[1:-1])
    browser.move('[data-at="q-3"]')
    assert "keys that are not shown" in readout(browser)[1]


def test_the_matrix_names_the_cell_under_the_pointer(opened: Any) -> None:
    maps = translation()
    browser: Browser = opened(maps)
    pick(browser, 1, 1)
    browser.click('input[data-at="view-matrix"] + span')
    browser.move(".cells", (3.5 / 10, 2.5 / 5))
    assert readout(browser)[0].startswith("lief looks at · at that")
    browser.run("document.querySelector('.cells').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowUp")
    assert readout(browser)[0].startswith("Hund looks at · at un")
    assert browser.texts(".label.on") == ["un", "Hund"]
    shades = browser.run(
        "(() => { const cells = document.querySelector('.cells');"
        " const data = cells.getContext('2d').getImageData(0, 0, cells.width, cells.height).data;"
        " return [cells.width, cells.height, ...[...data].filter((_, at) => at % 4 === 0)]; })()"
    )
    assert shades[:2] == [10, 5]
    darkness = -np.array(shades[2:], dtype=float)
    wanted = maps["cross"][1].weights[0, 1].ravel()
    assert wanted[darkness.argmax()] > 0.98 * wanted.max()
    assert np.corrcoef(darkness, np.sqrt(wanted))[0, 1] > 0.9


def test_the_page_works_with_the_keyboard(opened: Any) -> None:
    browser: Browser = opened(translation())

    def at() -> str | None:
        return browser.run("document.activeElement.dataset?.at ?? document.activeElement.id")

    seen = []
    for _ in range(17):
        browser.press("Tab")
        seen.append(at())
    assert "theme" in seen
    assert any(each.startswith("attention-") for each in seen if each)
    assert any(each.startswith("view-") for each in seen if each)
    assert {"words", "special", "step", "q-0", "k-0"} <= set(seen)
    browser.run("document.querySelector('.thumb[tabindex=\"0\"]').focus()")
    browser.press("ArrowUp")
    browser.press("Enter")
    assert caption(browser).startswith("layer 1")
    assert at() == browser.run("document.querySelector('.thumb[aria-pressed=true]').dataset.at")
    browser.run("document.querySelector('[data-at=q-0]').focus()")
    browser.press("ArrowDown", 2)
    assert at() == "q-2"
    assert readout(browser)[0] == "lief looks at"
    browser.press("ArrowRight")
    assert at() == "k-0"
    assert readout(browser)[0] == "[CLS] is looked at by"


def test_the_slider_shows_generation_steps(opened: Any) -> None:
    browser: Browser = opened(translation())
    assert browser.texts(".stepper output") == ["all 5 steps"]
    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowLeft")
    # each token has a place in the strip; this one is last
    assert browser.texts(".stepper output") == ["step 5 of 5: </s>"]
    browser.press("ArrowLeft", 2)
    assert browser.texts(".stepper output") == ["step 3 of 5: lief"]
    assert browser.texts(".token.later .text") == ["heim", "</s>"]
    assert readout(browser)[0] == "lief looks at"
    browser.click('[data-at="all-steps"]')
    assert browser.count(".token.later") == 0
    assert browser.run("document.querySelector('[data-at=step]').value") == "5"
    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowLeft", 2)
    browser.press("ArrowRight", 2)
    assert browser.texts(".stepper output") == ["all 5 steps"]


def test_the_step_keeps_its_token_when_the_view_changes(opened: Any) -> None:
    maps = AttentionMaps({"self": layers(0, 1, 1, ENGLISH, ENGLISH)}, "m", "text", None, ("self",))
    browser: Browser = opened(maps)

    def step() -> tuple[str, str, str | None]:
        said, value = browser.texts(".stepper output")[0], browser.run("document.querySelector('[data-at=step]').value")
        later = browser.texts(".token.later .text")
        return said, value, later[0] if later else None

    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowLeft")
    assert step() == ("step 10 of 10: [SEP]", "9", None)
    browser.click('[data-at="words"]')
    assert step() == ("step 9 of 9: [SEP]", "8", None)
    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowLeft", 4)
    assert step() == ("step 5 of 9: unwisely", "4", "barked")
    browser.click('[data-at="special"]')
    assert step() == ("step 4 of 7: unwisely", "3", "barked")
    browser.click('[data-at="words"]')
    assert step() == ("step 5 of 8: wisely", "4", "barked")
    browser.click('[data-at="special"]')
    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowRight", 4)
    assert step()[0] == "step 10 of 10: [SEP]"
    browser.click('[data-at="special"]')  # its token is gone
    assert step() == ("all 8 steps", "8", None)


def test_halted_positions_show_their_steps_and_turn_gray(opened: Any) -> None:
    maps = halting()
    browser: Browser = opened(maps)
    pick(browser, 2, 1)
    assert browser.texts(".tokens.q .steps") == ["1", "3", "2", "2", "4"]
    assert browser.texts(".tokens.k .steps") == ["2"] * 10
    assert browser.texts(".tokens .halted .text") == ["Der", "lief", "heim"]  # not keys: others still look at them
    assert browser.run("document.querySelector('[data-at=q-0]').title") == "took 1 step"
    browser.move('[data-at="q-2"]')
    assert readout(browser) == ("lief had halted · took 2 steps", [])
    browser.move('[data-at="q-1"]')
    assert readout(browser)[0] == "Hund looks at · took 3 steps"
    browser.click('input[data-at="view-matrix"] + span')
    assert browser.texts(".down .halted") == ["Der1", "lief2", "heim2"]
    shades = browser.run(
        "(() => { const cells = document.querySelector('.cells'), context = cells.getContext('2d');"
        " return [...Array(5).keys()].map((row) => Math.min(...context.getImageData(0, row, 10, 1).data)); })()"
    )
    assert [shade > 240 for shade in shades] == [True, False, True, True, False]  # nothing is drawn
    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowLeft")
    assert browser.texts(".down .halted") == ["Der1"]
    (panel,) = data_of(page([maps])[0])["panels"]
    data = np.frombuffer(zlib.decompress(base64.b64decode(panel["maps"])), np.uint8).reshape(4, 2, 5, 10)
    assert [bool(each.any()) for each in data[2].max((0, 2))] == [False, True, False, False, True]


def test_the_mean_over_steps_excludes_halted_positions(opened: Any) -> None:
    maps = halting()
    browser: Browser = opened(maps)
    pick(browser, 1, 0)
    pick(browser, 2, 0, shift=True)
    first, second = (maps["cross"][step].weights[0, 0] for step in (1, 2))
    for query, row in ((1, (first[1] + second[1]) / 2), (2, first[2])):  # the second has halted after two steps
        browser.move(f'[data-at="q-{query}"]')
        assert float(browser.texts(".readout .amount")[0].rstrip("%")) / 100 == pytest.approx(row.max(), abs=0.01)


def test_a_partly_halted_word_uses_its_running_tokens(opened: Any) -> None:
    side = replace(ENGLISH, steps=(2, 2, 2, 2, 1, 2, 2, 2, 2, 2))  # un 1, wisely 2
    maps = AttentionMaps({"self": layers(0, 2, 1, side, side, steps=True)}, "universal", "text")
    browser: Browser = opened(maps)
    pick(browser, 1, 0)
    browser.click('[data-at="words"]')
    assert browser.count(".tokens .halted") == 0
    browser.move('[data-at="q-4"]')
    row = maps.words()["self"][1].weights[0, 0, 4]
    np.testing.assert_allclose(row[5:], maps["self"][1].weights[0, 0, 5, 6:], rtol=1e-6)
    assert readout(browser)[0] == "unwisely looks at · took 2 steps"
    assert float(browser.texts(".readout .amount")[0].rstrip("%")) / 100 == pytest.approx(row.max(), abs=0.01)


def test_layers_are_named_by_their_index_in_the_model(opened: Any) -> None:
    some = layers(0, 4, 2, GERMAN, GERMAN)
    browser: Browser = opened(AttentionMaps({"self": [some[1], some[3]]}, "m", "text"))
    assert browser.texts(".row .all") == ["1", "3"]
    pick(browser, 0, 1)
    assert caption(browser) == "layer 1 · head 1"
    assert browser.run("document.querySelector('[data-at=\"thumb-1:0\"]').title") == "layer 3, head 0"


def test_the_slider_shows_depth_steps(opened: Any) -> None:
    maps = AttentionMaps({"self": layers(0, 4, 2, GERMAN, GERMAN, steps=True)}, "universal", "text")
    browser: Browser = opened(maps)
    pick(browser, 3, 1)
    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowLeft", 2)
    assert caption(browser) == "step 2 · head 1"
    browser.move('[data-at="q-0"]')
    assert readout(browser)[1][0] == GERMAN.tokens[maps["self"][1].weights[0, 1, 0].argmax()]


def test_attention_is_drawn_over_the_image(opened: Any) -> None:
    maps = image()
    browser: Browser = opened(maps)
    pick(browser, 1, 0)
    assert readout(browser)[0] == "[class] looks at"  # before anything is touched
    browser.move(".board.q", (0.4, 0.9))  # row 3, column 1: token 14
    row = maps["self"][1].weights[0, 0, 14]
    assert readout(browser)[0] == "row 3, column 1 looks at"
    best = maps["self"][1].keys.tokens[row.argmax()]
    assert readout(browser)[1][0] in (best, f"row {best.replace(',', ', column ')}")
    opacity = browser.run(
        "(() => { const context = document.querySelector('.board.k canvas').getContext('2d');"
        " const seen = (at) => context.getImageData((at % 4) * 120 + 20, Math.floor(at / 4) * 120 + 20, 1, 1).data[3];"
        " return [...Array(16).keys()].map(seen); })()"
    )
    heat = np.log(np.maximum(row[1:] * 17, 1))  # in even shares
    assert (np.array(opacity)[heat == 0] <= 1).all()
    assert np.corrcoef(opacity, heat)[0, 1] > 0.99
    assert browser.texts(".range") == [f"even 5.9%{row[1:].max():.0%}"]
    browser.run("document.querySelector('.board.q').focus()")
    browser.press("ArrowUp")
    assert readout(browser)[0] == "row 2, column 1 looks at"
    browser.click('input[data-at="view-matrix"] + span')
    assert browser.run("document.querySelector('.cells').width") == 17


def test_uniform_attention_colors_no_patch(opened: Any) -> None:
    maps = image()
    noise = 1 + 0.05 * np.random.default_rng(1).standard_normal((1, 2, 17, 17))
    layer = replace(maps["self"][1], weights=(noise / noise.sum(-1, keepdims=True)).astype(np.float32))
    browser: Browser = opened(replace(maps, axes={"self": [layer]}))
    painted = browser.run(
        "(() => { const canvas = document.querySelector('.board.k canvas');"
        " const data = canvas.getContext('2d').getImageData(0, 0, 480, 480).data;"
        " return data.reduce((most, value, at) => (at % 4 === 3 ? Math.max(most, value) : most), 0); })()"
    )
    assert painted < 0.15 * 255
    assert browser.texts(".range") == ["even 5.9%24%"]


def test_patches_have_no_seams_and_heads_fit_a_phone(opened: Any) -> None:
    browser: Browser = opened(image((14, 14), 12), width=400)
    pick(browser, 0, 0)
    steps = browser.run(
        "(() => { const canvas = document.querySelector('.board.k canvas');"
        " const row = canvas.getContext('2d').getImageData(0, 10, 480, 1).data;"
        " const alpha = [...Array(480).keys()].map((at) => row[4 * at + 3]);"
        " return alpha.filter((value, at) => value !== alpha[at - 1]).length; })()"
    )
    assert steps <= 14  # one value for each patch
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run(
        "(() => { const box = document.querySelector('.heads'); return box.scrollWidth <= box.clientWidth; })()"
    )


def test_a_long_text_is_paged(opened: Any) -> None:
    side = Side.positions(150)
    browser: Browser = opened(AttentionMaps({"self": layers(0, 1, 1, side, side)}, "m", "long"))
    assert browser.count(".tokens.q .token") == 64
    assert browser.texts(".pager span") == ["tokens 1–64 of 150"]  # one pager for both sides, which are the same
    browser.click('[data-at="turn-0-1"]')
    browser.click('[data-at="turn-0-1"]')
    assert browser.texts(".pager span") == ["tokens 87–150 of 150"]  # a full page
    assert browser.texts(".tokens.k .text")[0] == browser.texts(".tokens.q .text")[0] == "86"
    assert browser.run("document.querySelector('[data-at=\"turn-0-1\"]').disabled")
    browser.click('[data-at="turn-0--1"]')
    assert browser.texts(".pager span") == ["tokens 23–86 of 150"]


def test_source_and_target_have_pagers_with_their_names(opened: Any) -> None:
    source, target = Side.positions(70), Side.positions(80)
    browser: Browser = opened(AttentionMaps({"cross": layers(0, 1, 1, target, source)}, "m", "long"))
    browser.click('[data-at="turn-1-1"]')
    assert browser.texts(".pager span") == ["target tokens 1–64 of 80", "source tokens 7–70 of 70"]


@pytest.mark.parametrize("dark", [False, True])
def test_texts_are_legible_in_both_color_schemes(opened: Any, dark: bool) -> None:
    """WCAG 2.2, 1.4.3: contrast of at least 4.5 for what is read."""
    browser: Browser = opened(translation(), dark=dark)
    browser.click('[data-at="q-1"]')
    browser.run("new Promise((done) => setTimeout(done, 300))")  # until the color transitions have ended

    def luminance(color: str) -> float:
        parts = np.array([float(part) for part in re.findall(r"[\d.]+", color)[:3]]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    paper = browser.run("getComputedStyle(document.documentElement).backgroundColor")
    assert (luminance(paper) < 0.1) == dark
    for selector, behind in (
        (".input", None), (".caption .name", None), (".heading", None), (".tabs span", ".tabs"),
        (".token.special .text", None), (".token.on .text", ".token.on"), (".readout .amount", None), ("#theme", None),
    ):  # fmt: skip
        style = "getComputedStyle(document.querySelector('{}')).{}".format
        back = paper if behind is None else browser.run(style(behind, "backgroundColor"))
        ink = browser.run(style(selector, "color"))
        light, low = sorted((luminance(ink), luminance(back)), reverse=True)
        assert (light + 0.05) / (low + 0.05) >= 4.5, (selector, ink, back)


def test_the_theme_is_selectable_and_narrow_screens_do_not_scroll(opened: Any) -> None:
    browser: Browser = opened(translation(), width=390, height=800)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.click("#theme")
    browser.click("#theme")
    assert browser.texts("#theme") == ["colors: dark"]
    assert browser.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 23, 29)"
