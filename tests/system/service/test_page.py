"""The page at `/` in a headless Chromium, by clicking and typing, and its security restrictions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image

import manyheads
from manyheads import directory
from tests.support.browser import BINARY
from tests.support.service_browser import ServiceBrowser
from tests.support.services import (
    Running,
    bert,
    client,
    drawn,
    language_model,
    measured,
    run_directory,
    serving,
    translator,
)  # fmt: skip

EVIL = "<img src=x onerror=document.title='taken'>"
SENTENCE = "the cat sat on the mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Running]:
    vit = drawn("vit/ti4-32", image_size=32, patch=16, width=16, layers=1, heads=2, labels=("dots", "lines"))
    directory.save(folder / "see", vit)
    models = [
        translator(folder / "en-de"), language_model(folder / "lm"), folder / "see",
        bert(folder / "tell", head="sequence", labels=("good", EVIL)),
        bert(folder / "tagger", head="token", labels=("O", "B-ANIMAL", "I-ANIMAL")),
        bert(folder / "qa", head="question"), bert(folder / "mask", head="masked_lm"),
        bert(folder / "enc", head="none"),
    ]  # fmt: skip
    with serving(folder / "log", *models, "--watch", run_directory(folder / "training")) as service:
        yield service
        assert not [line for line in service.lines() if line.get("status", 0) >= 500 or "traceback" in line]


@pytest.fixture(scope="module")
def opened() -> Iterator[ServiceBrowser]:
    if BINARY is None:
        pytest.skip("no Chromium on the path: install chromium to test the page by clicking")
    browser = ServiceBrowser()
    yield browser
    browser.close()


@pytest.fixture
def browser(opened: ServiceBrowser) -> Iterator[ServiceBrowser]:
    """One in which nothing failed while it was used."""
    yield opened
    assert opened.failures == []


def address(running: Running, **state: str) -> str:
    return f"{running.url}/#{urlencode(state)}"


def asked(browser: ServiceBrowser) -> None:
    """By a click on the button; until the result and the heads are there."""
    browser.click("#run")
    looked(browser)


def looked(browser: ServiceBrowser) -> None:
    browser.wait("document.querySelector('#state').textContent === 'Done'")
    browser.wait("document.querySelector('.panel .readout') !== null")


def test_a_translation_shows_its_attention(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    browser.visit(running.url)
    assert browser.texts("#about") == ["English to German"]
    browser.type("#field-text", SENTENCE)
    asked(browser)
    ranked = manyheads.load(folder / "en-de").nbest([SENTENCE], count=3)[0]
    assert browser.texts("#result .said") == [ranked[0].text]
    assert [float(each) for each in browser.texts("#result .amount")] == [
        pytest.approx(each.log_probability, abs=0.02) for each in ranked
    ]
    assert browser.texts(".panel h2") == ["en-de"]  # and no path of the machine
    assert browser.texts(".panel .input")[0].startswith(f"{SENTENCE} → ")
    browser.click("#result li:nth-child(2) button")
    browser.wait(f"document.querySelector('.panel .input').textContent.endsWith({json.dumps(ranked[1].text)})")
    browser.click("input[value='matrix'] + span")
    assert browser.count(".panel .matrix") == 1


def test_lines_are_translated_independently(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    browser.visit(address(running, model="en-de", text="the cat\n\nthe mat"))
    looked(browser)  # a link starts its request immediately
    assert browser.texts("#result .said") == manyheads.load(folder / "en-de").translate(["the cat", "the mat"])


def test_labels_are_text_for_any_content(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    browser.visit(address(running, model="tell"))
    browser.type("#field-text", f"the cat {EVIL}")
    browser.type("#field-pair", "the mat")
    asked(browser)
    expected = manyheads.load(folder / "tell").classify(f"the cat {EVIL}", "the mat", top=2)
    assert browser.texts("#result .name") == [each.label for each in expected]
    assert EVIL in browser.texts("#result .name")
    shares = [float(each.rstrip("%")) / 100 for each in browser.texts("#result .amount")]
    assert shares == [pytest.approx(each.probability, abs=0.006) for each in expected]
    assert EVIL in browser.texts(".panel .input")[0]
    assert browser.run("document.title") == "Manyheads"
    assert browser.count("#desk img, #desk script") == 0


def test_data_cannot_become_markup(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(running.url)
    told = browser.run(
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (e) { return e.name } })()"
    )
    assert told == "TypeError"
    browser.failures.clear()  # that it was refused


def test_words_are_tagged(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    browser.visit(address(running, model="tagger", text=SENTENCE))
    looked(browser)
    tagged = manyheads.load(folder / "tagger").tag(SENTENCE)
    marks = tagged.entities or tagged.words
    kinds = [each.kind for each in tagged.entities] or [each.tag for each in tagged.words]
    assert browser.texts("#result mark small") == kinds
    assert browser.texts("#result .name") == [f"{m.text} · {kind}" for m, kind in zip(marks, kinds, strict=True)]


def test_an_answer_is_highlighted_in_its_text(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    context = "𝒳 the cat sat on the mat, the dog sat on the cat"  # the first letter is two for scripts
    browser.visit(address(running, model="qa", question="the dog", context=context))
    looked(browser)
    found = manyheads.load(folder / "qa").answer("the dog", context, nbest=5)
    assert browser.texts("#result .name") == [each.text or "(no answer)" for each in found]
    if found[0].text:
        assert browser.texts("#result mark") == [found[0].text]


def test_a_mask_is_inserted_and_filled(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    browser.visit(address(running, model="mask"))
    browser.type("#field-text", "the cat ")
    browser.click(".field .quiet")
    asked(browser)
    expected = manyheads.load(folder / "mask").fill("the cat [MASK]", top=8)
    assert browser.texts("#result .name") == [each.token for each in expected]
    browser.click("#result li:nth-child(3) button")
    browser.wait("!document.querySelector('.panel .input').textContent.includes('[MASK]')")


def test_two_texts_are_compared(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(address(running, model="enc", text=SENTENCE, other=SENTENCE))
    looked(browser)
    assert browser.texts("#result .amount") == ["1.000"]


def test_attention_of_a_streamed_completion(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(address(running, model="lm"))
    browser.type("#field-text", "the cat")
    browser.type("#field-tokens", "60")
    browser.type("#field-temperature", "0")
    browser.run(  # which texts were looked at
        "(window.seen = new Set(), new MutationObserver(() => { const title = document.querySelector('.panel .input');"
        " if (title) seen.add(title.textContent); }).observe(document.querySelector('#attention'), {childList: true}))"
    )
    asked(browser)
    with client(running) as http:
        said = http.post("/v1/completions", json={
            "model": "lm", "prompt": "the cat", "max_tokens": 60, "temperature": 0, "seed": 1}).json()  # fmt: skip
    text = "the cat" + said["choices"][0]["text"]
    assert browser.texts("#result .said") == [text]
    browser.wait(f"seen.has({json.dumps(text)})")
    seen = browser.run("[...seen]")
    assert len(seen) > 1, "the heads were seen at the end alone"
    assert all(text.startswith(each) for each in seen)
    with client(running) as http:
        following = http.post("/attend", json={"model": "lm", "text": text}).json()["next"]
    browser.wait(f"document.querySelector('.ranking .name').textContent === {json.dumps(following[0]['token'])}")


def test_next_tokens_equal_the_models_prediction(running: Running, folder: Path) -> None:
    lens = manyheads.load(folder / "lm").lens("the cat", top=5)
    with client(running) as http:
        told = http.post("/attend", json={"model": "lm", "text": "the cat"}).json()["next"]
    assert [each["probability"] for each in told] == pytest.approx(lens.probabilities[-1, -1].tolist(), abs=1e-5)
    assert [each["token"] for each in told] == lens.words[-1][-1]


def begin_writing(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(address(running, model="lm"))
    browser.type("#field-text", "the")
    browser.type("#field-tokens", "1000")
    browser.type("#field-temperature", "0")
    browser.click("#run")
    browser.wait("document.querySelector('.written')?.textContent.length > 3")


def test_generation_can_be_stopped(browser: ServiceBrowser, running: Running) -> None:
    begin_writing(browser, running)
    browser.click("#stop")
    assert browser.texts("#state") == ["Stopped"]
    assert not browser.run("document.querySelector('#stop').offsetParent")
    browser.wait("document.querySelector('#told').hidden")
    told_too_long(browser)


def test_an_empty_optional_field_does_not_change_the_response(browser: ServiceBrowser, running: Running) -> None:
    begin_writing(browser, running)
    browser.run("document.querySelector('#field-text').value = ''")
    enter = "new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true})"
    browser.run(f"document.querySelector('#field-text').dispatchEvent({enter})")
    browser.click("#stop")
    assert browser.texts("#state") == ["Stopped"]
    told_too_long(browser)


def test_a_failure_discards_the_previous_text(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(address(running, model="en-de", text=SENTENCE))
    looked(browser)
    browser.type("#field-text", "the cat sat " * 50)
    browser.click("#run")
    browser.wait("!document.querySelector('#told').hidden")
    assert browser.count("#result *, .panel") == 0
    assert "400" in browser.failures.pop()


def told_too_long(browser: ServiceBrowser) -> None:
    """Assert that a failed request, if any, was a text over the limit, and that the page shows the limit in a note."""
    assert len(browser.failures) <= 1
    if browser.failures:
        assert "400" in browser.failures.pop()
        browser.wait("!document.querySelector('#note').hidden")
        assert re.search("the model takes 128|at most 256", browser.texts("#note")[0])


def test_the_page_confirms_overlong_texts_once(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(address(running, model="lm"))
    browser.type("#field-text", "the")
    browser.type("#field-tokens", "300")
    browser.type("#field-temperature", "0")
    browser.click("#run")
    browser.wait("document.querySelector('#state').textContent === 'Done'")
    browser.wait("!document.querySelector('#note').hidden")
    assert len(browser.failures) == 1
    told_too_long(browser)


def test_an_image_can_be_dropped_on_the_page(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / "image.png")
    browser.visit(address(running, model="see"))
    browser.drop(".of-image", folder / "image.png")
    looked(browser)
    expected = manyheads.load(folder / "see").classify(folder / "image.png", top=2)
    assert browser.texts("#result .name") == [each.label for each in expected]
    assert browser.count(".panel .board img") == 2
    assert browser.run("location.hash") == "#model=see&verb=classify"  # an image is no part of a link


def test_a_copied_link_can_be_restored(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(running.url)
    browser.choose("#model", "lm")
    browser.type("#field-text", "the cat & the dog\n#1")
    browser.type("#field-seed", "7")
    browser.type("#field-tokens", "5")
    asked(browser)
    link, said = browser.run("location.href"), browser.texts("#result .said")
    browser.visit(link)
    looked(browser)
    assert browser.texts("#result .said") == said
    assert browser.run("document.querySelector('#field-seed').value") == "7"
    assert browser.run("document.querySelector('#model').value") == "lm"
    browser.visit(address(running, model="gone"))
    assert browser.texts("#told")[0].startswith("This service has no gone")


def test_the_keyboard_suffices(browser: ServiceBrowser, running: Running) -> None:
    browser.visit(address(running, model="en-de"))
    browser.run("document.querySelector('#model').focus()")
    for _ in range(3):  # copy link, colors, the text
        browser.press("Tab")
    assert browser.run("document.activeElement.id") == "field-text"
    browser.send("Input.insertText", text=SENTENCE)
    for _ in range(2):  # cut texts that are too long, the button
        browser.press("Tab")
    assert browser.run("document.activeElement.id") == "run"
    browser.press("Enter")
    looked(browser)
    for _ in range(30):
        browser.press("Tab")
        if browser.run("document.activeElement.classList.contains('token')"):
            break
    assert " looks " in browser.texts(".panel .readout p")[0]


def test_curves_grow_during_training(browser: ServiceBrowser, running: Running, folder: Path) -> None:
    browser.visit(running.url)
    browser.choose("#model", "curves:training")
    browser.wait("document.querySelectorAll('svg').length === 2")
    assert browser.texts("#curves figcaption strong") == ["loss", "learning rate"]
    assert browser.texts("#curves .key") == ["training 1.67", "training 0.1"]
    assert browser.texts("#curves .about")[0].startswith("step 3 · last measured ")
    measured(folder / "training", {"step": 4, "loss": 0.5}, {"step": 4, "validation": {"loss": 0.75, "bleu": 9.0}})
    browser.wait("document.querySelectorAll('svg').length === 3")
    assert browser.texts("#curves .key") == ["training 0.5", "validation 0.75", "validation 9", "training 0.1"]
    assert browser.run("document.querySelector('#curves polyline').points.length") == 4


def test_a_token_is_required_and_never_part_of_a_link(opened: ServiceBrowser, folder: Path) -> None:
    token = "a-token-of-some-length"
    model = bert(folder / "guarded", head="masked_lm")
    with serving(folder / "log-3", model, MANYHEADS_TOKEN=token) as service:
        with client(service) as http:
            assert http.get("/").status_code == 200
            for path in ("/runs", "/v1/models", "/runs/x"):
                assert http.get(path).status_code == 401
            assert http.post("/attend", json={"model": "guarded", "text": "a"}).status_code == 401
        opened.visit(service.url)
        assert opened.run("document.activeElement.id") == "token"
        opened.type("#token", "another-token-of-that-length")
        opened.press("Enter")
        opened.wait("document.querySelector('#told').textContent === 'That is not the token.'")
        opened.type("#token", token)
        opened.press("Enter")
        opened.wait("!document.querySelector('#desk').hidden")
        opened.type("#field-text", "the [MASK]")
        asked(opened)
        assert token not in opened.run("location.href")
        opened.run("sessionStorage.clear()")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone(browser: ServiceBrowser, running: Running, dark: bool) -> None:
    for state in ({"model": "en-de", "text": SENTENCE}, {"model": "lm", "text": "the", "tokens": "20"}):
        browser.visit(address(running, **state), 400, 800, dark=dark)
        looked(browser)
        assert browser.run("document.documentElement.scrollWidth") == 400
    white = browser.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert white != dark


def test_every_field_has_a_label(browser: ServiceBrowser, running: Running) -> None:
    for model in ("en-de", "lm", "see", "tell", "tagger", "qa", "mask", "enc"):
        browser.visit(address(running, model=model))
        unnamed = browser.run(
            "[...document.querySelectorAll('input, select, textarea')].filter(each => each.offsetParent"
            " && !(each.labels.length || each.ariaLabel)).map(each => each.outerHTML)"
        )
        assert unnamed == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": "lm"}, "text"),
        ({"model": "lm", "text": ""}, "text"),
        ({"model": "lm", "text": "the cat " * 900}, "text"),
        ({"model": "lm", "text": "a b c d " * 60}, "text"),
        ({"model": "lm", "text": "a", "target": "b"}, "target"),
        ({"model": "lm", "text": "a", "pair": "b"}, "pair"),
        ({"model": "lm", "text": "a", "image": "b"}, "image"),
        ({"model": "qa", "text": "a"}, "pair"),
        ({"model": "see", "text": "a"}, "text"),
        ({"model": "see"}, "image"),
        ({"model": "see", "image": "no base64!"}, "image"),
        ({"model": "see", "image": "AAAA"}, "image"),
        ({"model": "gone", "text": "a"}, "model"),
        ({"text": "a"}, "model"),
        ({"model": "lm", "text": "a", "layers": [0]}, "layers"),
    ],
)
def test_requests_for_attention_are_bounded(running: Running, body: dict[str, Any], field: str) -> None:
    with client(running) as http:
        found = http.post("/attend", json=body)
    assert found.status_code in (400, 404), found.text
    assert found.json()["error"]["param"] == field


def test_a_blank_text_is_rejected(browser: ServiceBrowser, running: Running) -> None:
    for model in ("tell", "en-de"):
        browser.visit(address(running, model=model, text=" ", pair=" "))
        browser.wait("document.querySelector('#result').textContent.startsWith('Enter a text to ')")
