"""Page of attention maps: two inputs side by side in a real browser."""

from dataclasses import replace
from typing import Any

from manyheads.analysis.maps import AttentionMaps
from manyheads.analysis.maps.sides import Side
from tests.support.browser import Browser
from tests.support.map_examples import (
    GERMAN,
    halting,
    image,
    layers,
    pick,
    translation,
)


def test_two_inputs_are_shown_in_step(opened: Any) -> None:
    browser: Browser = opened(translation(), translation(seed=50), width=1500)
    assert browser.count(".panel") == 2
    lefts = browser.run("[...document.querySelectorAll('.panel')].map((each) => each.getBoundingClientRect().left)")
    assert lefts[0] < lefts[1]
    pick(browser, 0, 1)
    assert browser.texts(".caption strong") == ["layer 0 · head 1"] * 2
    browser.move('[data-at="q-1"]')
    assert [text for text in browser.texts(".readout p") if text == "Hund looks at"] == ["Hund looks at"] * 2
    browser.click("#together input")
    pick(browser, 1, 1)
    assert browser.texts(".caption strong") == ["layer 1 · head 1", "layer 0 · head 1"]


def test_patches_are_matched_by_position_and_other_tokens_by_name(opened: Any) -> None:
    distilled = Side.patches((4, 4), ["[class]", "[distillation]"])
    coarse = Side.patches((2, 2), ["[class]"])
    pictures = [image(), AttentionMaps({"self": layers(7, 2, 2, distilled, distilled)}, "a DeiT", "cat.png"),
                AttentionMaps({"self": layers(7, 2, 2, coarse, coarse)}, "small", "cat.png")]  # fmt: skip

    browser: Browser = opened(*pictures[:2], width=1500)

    def subjects() -> list[str]:
        return [text.removesuffix(" looks at") for text in browser.texts(".readout p")]

    browser.move(".board.q", (0.4, 0.9))
    assert subjects() == ["row 3, column 1", "row 3, column 1"]
    browser.move(".panel:nth-child(2) .board.q", (0.1, 0.1))
    assert subjects() == ["row 0, column 0", "row 0, column 0"]
    browser.move(".panel:nth-child(2) .chips .token:nth-child(2)")
    assert subjects() == ["row 0, column 0", "[distillation]"]  # which the ViT has not
    browser.move(".panel:nth-child(2) .chips .token")
    assert subjects() == ["[class]", "[class]"]
    opened(*pictures[::2], width=1500)
    browser.move(".board.q", (0.9, 0.4))
    assert subjects() == ["row 1, column 3", "row 0, column 1"]


def test_side_by_side_steps_agree_for_equal_tokens(opened: Any) -> None:
    other = translation(seed=50)
    side = replace(GERMAN, tokens=("Der", "Hund", "rannte", "heim", "</s>"))
    cross = [replace(layer, queries=side) for layer in other["cross"]]
    browser: Browser = opened(translation(), replace(other, axes={"cross": cross}), width=1500)

    def steps() -> list[str]:
        script = "[...document.querySelectorAll('[data-at=step]')].map((each) => each.value)"
        return [f"{value} {said}" for value, said in zip(browser.run(script), browser.texts(".stepper output"))]  # noqa: B905

    browser.run("document.querySelector('[data-at=step]').focus()")
    browser.press("ArrowLeft", 2)
    assert steps() == ["3 step 4 of 5: heim"] * 2
    assert browser.texts(".token.later .text") == ["</s>"] * 2
    browser.press("ArrowLeft")
    assert steps() == ["2 step 3 of 5: lief", "3 step 4 of 5: heim"]  # "rannte" is another token
    browser.press("ArrowLeft")
    assert steps() == ["1 step 2 of 5: Hund"] * 2
    browser.click('[data-at="all-steps"]')
    assert steps() == ["5 all 5 steps"] * 2


def test_side_by_side_depth_steps_stop_at_their_own_maximum(opened: Any) -> None:
    browser: Browser = opened(halting(), halting(50, (2, 2, 2, 1, 1)), width=1500)
    pick(browser, 1, 0)
    browser.run("document.querySelector('[data-at=step]').focus()")
    assert browser.texts(".caption strong") == ["step 2 · head 0"] * 2
    browser.press("ArrowRight")
    assert browser.texts(".caption strong") == ["step 3 · head 0", "step 2 · head 0"]
    assert browser.texts(".stepper output") == ["step 3 of 4", "step 2 of 2"]
