"""Calculation of an attention weight: recording in a model, the data in a page, and their display by its script."""

import base64
import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads.analysis.maps import AttentionMaps, Calculation, Layer, MapOptions, attention_maps
from manyheads.analysis.maps.page import NUMBERS, SHOWN, page
from manyheads.analysis.maps.sides import Side
from manyheads.core.attention import Attention, attend
from manyheads.core.editing import edit
from manyheads.core.masks import Mask
from manyheads.core.recording import record, record_calculations
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.models.universal import Universal, UniversalConfig
from tests.support.browser import Browser
from tests.support.map_examples import data_of, pick, translation

WORDS: dict[str, Any] = {"source_vocab": 19, "target_vocab": 19, "pad": 18, "end": 0, "start": 18, "width": 16}


def built(kind: str) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"heads": 2, "feed_forward": 8}
    if kind == "gpt":
        model: Any = GPT(GPTConfig(vocab=19, width=16, layers=2, **sizes))
    elif kind == "bert":
        model = Bert(BertConfig(vocab=19, width=16, layers=2, head="masked_lm", **sizes))
    elif kind == "universal":
        model = Universal(UniversalConfig(**WORDS, steps=3, halting="basic", **sizes))
    else:
        model = Transformer(TransformerConfig(
            **WORDS, encoder_layers=2, decoder_layers=2, encoder_heads=2, decoder_heads=4, encoder_feed_forward=8,
            decoder_feed_forward=8, key_width=3,
        ))  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model.eval()


def inputs(kind: str) -> list[Tensor | None]:
    source, target = torch.tensor([[3, 1, 4, 1, 5, 9, 2]]), torch.tensor([[18, 6, 5, 3, 5]])
    return [source] if kind in ("gpt", "bert") else [source, None, target]


def weights_of(calculation: Calculation) -> NDArray[np.float64]:
    """By the equation, in float64 (Vaswani 2017, equation 1)."""
    scores = np.einsum("hqd,hkd->hqk", calculation.query, calculation.key, dtype=np.float64) * calculation.scale
    if calculation.added is not None:
        scores = scores + calculation.added
    raw: NDArray[np.float64] = np.exp(scores - scores.max(-1, keepdims=True))
    return raw / raw.sum(-1, keepdims=True)


KINDS = ["gpt", "bert", "translator", "universal"]


@pytest.mark.parametrize("way", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_maps_equal_their_calculations(kind: str, way: bool) -> None:
    model = built(kind)
    for module in model.modules():
        if isinstance(module, Attention):
            module.explicit = way
    maps = attention_maps(model, *inputs(kind), options=MapOptions(calculation=True))
    for axis, layers in maps.axes.items():
        for layer in layers:
            assert layer.calculation is not None
            np.testing.assert_allclose(weights_of(layer.calculation), layer.weights[0], rtol=1e-5, atol=1e-7)
            causal = axis == "decoder" or kind == "gpt"
            assert (layer.calculation.added is not None) == causal
            assert layer.calculation.scale == 1 / math.sqrt(layer.calculation.query.shape[-1])
    options = MapOptions(layers=None if kind == "universal" else [1], heads=[1], calculation=True)
    chosen = attention_maps(model, *inputs(kind), options=options)
    for axis, (*_, last) in chosen.axes.items():
        assert last.calculation is not None
        whole = next(each.calculation for each in maps[axis] if (each.number, each.step) == (last.number, last.step))
        assert whole is not None
        np.testing.assert_array_equal(last.calculation.query, whole.query[[1]])
        np.testing.assert_array_equal(last.calculation.value, whole.value[[1]])


def test_weighted_values_equal_head_outputs() -> None:
    model, seen = built("translator"), list[Tensor]()

    def keep(output: Tensor) -> Tensor:
        seen.append(output)
        return output

    maps = attention_maps(model, *inputs("translator"), options=MapOptions(calculation=True))
    with edit(model) as change, torch.no_grad():
        change.output("decoder.*.cross", None, keep)
        model(*inputs("translator"))
    for layer, output in zip(maps["cross"], seen, strict=True):
        assert layer.calculation is not None
        mixed = np.einsum("hqk,hkd->hqd", weights_of(layer.calculation), layer.calculation.value)
        np.testing.assert_allclose(mixed, output[0].numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 5, 7), (1, 4, 5, 7), (5, 7), (1, 4, 1, 7)])
def test_calculation_includes_bias_and_mask(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    q, k, bias = torch.randn(1, 4, 5, 8), torch.randn(1, 4, 7, 8), torch.randn(shape)
    model = torch.nn.ModuleDict({"only": Attention(32, 4)})
    attention: Any = model["only"]
    with record(model, heads=[2, 0]) as maps, record_calculations(model, heads=[2, 0]) as calls:
        attend(q, k, k, bias=bias, mask=Mask(causal=True), tap=attention.tap)
    (call,) = calls["only"]
    assert call.added is not None
    again = (call.query @ call.key.transpose(-2, -1) * call.scale + call.added).softmax(-1)
    torch.testing.assert_close(again, maps["only"][0], atol=1e-6, rtol=1e-5)
    assert (again[0, 0, 0, 3:] == 0).all()  # the last query is at the last key


@pytest.mark.parametrize("how", ["scores", "count"])
def test_maps_without_softmax_have_no_calculation(how: str) -> None:
    model, values = torch.nn.ModuleDict({"only": Attention(8, 2)}), torch.randn(1, 2, 3, 4)
    attention: Any = model["only"]
    given: dict[str, Any] = {"scores": torch.zeros(1, 2, 3, 3)} if how == "scores" else {"normalize": "count"}
    with pytest.raises(ValueError, match="not a softmax over products"), record_calculations(model):
        attend(values, None if how == "scores" else values, values, **given, tap=attention.tap)


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    """Of a small translator, with words of two pieces and a special token."""
    options, stepwise = MapOptions(calculation=True), ("decoder", "cross")
    plain = attention_maps(built("translator"), *inputs("translator"), options=options, stepwise=stepwise)
    source = Side(("the", "old", "un", "wise", "dog", "ran", "</s>"), (0, 1, 2, 2, 3, 4, -1))
    target = Side(("der", "alte", "Hund", "lief", "</s>"), (0, 1, 2, 3, -1))
    sides = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    axes = {
        axis: [replace(layer, queries=sides[axis][0], keys=sides[axis][1]) for layer in layers]
        for axis, layers in plain.axes.items()
    }
    return replace(plain, axes=axes, model="a translator", title="the old unwise dog ran → der alte Hund lief")


def test_a_page_holds_exact_weights(maps: AttentionMaps) -> None:
    (panel,) = data_of(page([maps])[0])["panels"]
    numbers, at = np.frombuffer(zlib.decompress(base64.b64decode(panel["calculations"])), "<f4"), 0
    for axis, about in zip(maps.axes.values(), panel["axes"], strict=True):
        for layer, row in zip(axis, about["layers"], strict=True):
            assert layer.calculation is not None
            assert row["calculation"]["scale"] == layer.calculation.scale
            for name, table in layer.calculation.tables().items():
                assert row["calculation"]["shapes"][name] == list(table.shape)
                np.testing.assert_array_equal(numbers[at : at + table.size].reshape(table.shape), table)
                at += table.size
    assert at == len(numbers)
    without = page(
        [replace(maps, axes={a: [replace(each, calculation=None) for each in ls] for a, ls in maps.axes.items()})]
    )[0]
    assert data_of(without)["panels"][0]["calculations"] is None
    assert maps.words()["cross"][0].calculation is None  # of words there is none


def test_arrays_include_calculations(maps: AttentionMaps) -> None:
    arrays, layer = maps.arrays(), maps["decoder"][1]
    assert layer.calculation is not None
    np.testing.assert_array_equal(arrays["decoder/1/calculation/key"], layer.calculation.key)
    np.testing.assert_array_equal(arrays["decoder/1/calculation/added"], layer.calculation.added)
    assert "cross/0/calculation/added" not in arrays


def made_up(tokens: int, width: int, heads: int = 1) -> AttentionMaps:
    side, table = Side.positions(tokens), np.zeros((heads, tokens, width), np.float32)
    weights = np.full((1, heads, tokens, tokens), 1 / tokens, np.float32)
    layer = Layer("x", 0, weights, tuple(range(heads)), side, side, None, Calculation(table, table, table, 1.0, None))
    return AttentionMaps({"self": [layer]}, "m", "text")


def test_a_page_stays_small() -> None:
    numbers = 3 * 12 * 64 * 500
    assert numbers > NUMBERS
    with pytest.raises(
        ValueError, match=rf"have {numbers:,} values, expected at most {NUMBERS:,}: select fewer layers"
    ):
        page([made_up(64, 500, 12)])
    with pytest.raises(ValueError, match=f"calculations of {SHOWN + 1} tokens: expected at most {SHOWN}"):
        page([made_up(SHOWN + 1, 2)])
    rng = np.random.default_rng(0)
    full = made_up(128, 64, NUMBERS // (3 * 128 * 64))
    calculation = full["self"][0].calculation
    assert calculation is not None
    random = rng.standard_normal(calculation.query.shape).astype(np.float32)
    layer = replace(full["self"][0], calculation=Calculation(random, random[::-1], random + 1, 1.0, None))
    assert len(page([replace(full, axes={"self": [layer]})])[0].encode()) < 6_500_000


def number(browser: Browser, at: str) -> float:
    return float(browser.run(f"document.querySelector('[data-at=\"{at}\"]').title"))


def numbers(browser: Browser, at: str) -> list[float]:
    return browser.run(f"Array.from(document.querySelector('[data-at=\"{at}\"]').numbers)")


def share(weight: float) -> str:
    return f"{weight:.0%}" if weight >= 0.0995 else f"{weight:.1%}"


def figure(number: float) -> str:
    return f"{'−' if number < 0 else ''}{abs(number):.2f}"


def check(browser: Browser, layer: Layer, head: int, query: int, key: int) -> None:
    """Assert that the page shows the computed values of a query and key."""
    calculation = layer.calculation
    assert calculation is not None
    np.testing.assert_allclose(numbers(browser, "query"), calculation.query[head, query], rtol=0)
    np.testing.assert_allclose(numbers(browser, "key"), calculation.key[head, key], rtol=0)
    products = calculation.query[head, query].astype(float) * calculation.key[head, key]
    np.testing.assert_allclose(numbers(browser, "products"), products, rtol=1e-12)
    assert number(browser, "step-0") == pytest.approx(products.sum(), rel=1e-9, abs=1e-12)
    assert number(browser, "step-1") == pytest.approx(products.sum() * calculation.scale, rel=1e-9, abs=1e-12)
    weights = [number(browser, f"weight-{at}") for at in range(len(layer.keys))]
    np.testing.assert_allclose(weights, weights_of(calculation)[head, query], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(weights, layer.weights[0, head, query], rtol=1e-5, atol=1e-7)  # the model's own
    mixed = weights_of(calculation)[head, query] @ calculation.value[head]
    np.testing.assert_allclose(numbers(browser, "output"), mixed, rtol=1e-9, atol=1e-12)


def test_a_click_on_both_sides_shows_the_calculation(opened: Any, maps: AttentionMaps) -> None:
    browser: Browser = opened(maps)
    pick(browser, 1, 2)
    assert "select a token on each side" in browser.texts(".calculation .hint")[0]
    browser.click('[data-at="q-2"]')
    browser.click('[data-at="k-4"]')
    assert browser.texts(".calculation h3") == ["Weight from Hund to dog"]
    check(browser, maps["cross"][1], 2, 2, 4)
    shown = browser.texts(".readout p")[0]
    # the exact weight: the map is not packed with rounding
    assert f"at dog {share(maps['cross'][1].weights[0, 2, 2, 4])}" in shown
    browser.click('[data-at="k-0"]')  # another key of the same query
    assert browser.texts(".calculation h3") == ["Weight from Hund to the"]
    check(browser, maps["cross"][1], 2, 2, 0)
    browser.click('[data-at="c-5"]')  # and one in the list
    assert browser.texts(".calculation h3") == ["Weight from Hund to ran"]
    pick(browser, 0, 3)  # the same pair in another head
    check(browser, maps["cross"][0], 3, 2, 5)
    pick(browser, 1, 3, shift=True)
    assert browser.texts(".calculation .hint") == ["Select a single head to see a calculation."]
    pick(browser, 1, 3)
    browser.press("Escape")
    assert browser.count(".calculation .hint") == 1


def test_masked_keys_have_no_weight(opened: Any, maps: AttentionMaps) -> None:
    browser: Browser = opened(maps)
    browser.click('input[data-at="attention-1"] + span')
    pick(browser, 0, 1)
    browser.click('[data-at="q-1"]')
    browser.click('[data-at="k-1"]')
    check(browser, maps["decoder"][0], 1, 1, 1)
    assert browser.texts(".steps-of-score dt")[2:4] == ["+ bias", "the score"]
    browser.click('[data-at="k-3"]')
    assert browser.texts(".steps-of-score dt")[2] == "hidden by the mask"
    assert browser.texts('[data-at="score-3"]') == ["−∞"]
    assert browser.texts('[data-at="weight-3"]') == ["0.0%"]


def test_the_keyboard_reaches_everything(opened: Any, maps: AttentionMaps) -> None:
    browser: Browser = opened(maps)
    pick(browser, 1, 0)
    browser.run("document.querySelector('[data-at=q-0]').focus()")
    browser.press("ArrowDown", 3)
    browser.press("Enter")
    browser.press("ArrowRight")
    browser.press("ArrowDown", 2)
    browser.press("Enter")
    assert browser.texts(".calculation h3") == ["Weight from lief to un"]
    check(browser, maps["cross"][1], 0, 3, 2)
    browser.run("document.querySelector('[data-at=dimension]').focus()")
    before = int(browser.run("document.activeElement.value"))
    browser.press("ArrowLeft" if before else "ArrowRight")
    (told,) = browser.texts(".vectors output")
    at = before - 1 if before else 1
    one, other, product = (numbers(browser, name)[at] for name in ("query", "key", "products"))
    assert told == f"dimension {at}: {figure(one)} × {figure(other)} = {figure(product)}"
    browser.run("document.querySelector('[data-at=c-2]').focus()")
    browser.press("ArrowDown")
    browser.press("Enter")
    assert browser.texts(".calculation h3") == ["Weight from lief to wise"]
    assert browser.run("document.activeElement.dataset.at") == "c-3"
    browser.click('input[data-at="view-matrix"] + span')
    browser.run("document.querySelector('.cells').focus()")
    browser.press("Escape")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    browser.press("Enter")
    assert browser.texts(".calculation h3") == ["Weight from der to old"]
    browser.press("ArrowDown")
    check(browser, maps["cross"][1], 0, 1, 1)


def test_words_of_several_tokens_and_special_tokens_in_the_sum(opened: Any, maps: AttentionMaps) -> None:
    browser: Browser = opened(maps)
    pick(browser, 1, 1)
    browser.click('[data-at="words"]')
    browser.click('[data-at="q-2"]')
    browser.click('[data-at="k-2"]')
    assert browser.texts(".calculation .hint") == ["Switch off whole words to see a calculation."]
    browser.click('[data-at="k-3"]')
    check(browser, maps["cross"][1], 1, 2, 4)
    browser.click('[data-at="words"]')
    browser.click('[data-at="special"]')
    browser.click('[data-at="q-2"]')
    browser.click('[data-at="k-4"]')
    check(browser, maps["cross"][1], 1, 2, 4)
    assert browser.run("document.querySelector('[data-at=c-6]').disabled")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_legible_on_a_phone_in_both_color_schemes(opened: Any, maps: AttentionMaps, dark: bool) -> None:
    browser: Browser = opened(maps, width=400, height=900, dark=dark)
    browser.click('[data-at="q-2"]')
    browser.click('[data-at="k-4"]')
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    cut = browser.run(
        "[...document.querySelectorAll('.calculation :is(h3, dt, dd, output, .score, .weight)')]"
        ".filter((each) => each.scrollWidth > each.clientWidth + 1 && each.clientWidth).map((each) => each.textContent)"
    )
    assert cut == []
    paper = [20, 23, 29] if dark else [255, 255, 255]
    strip = browser.run(
        "(() => { const canvas = document.querySelector('[data-at=products]'), numbers = canvas.numbers;"
        " const data = canvas.getContext('2d').getImageData(0, 0, numbers.length, 1).data;"
        " return Array.from(numbers, (n, at) => [n, [...data.slice(4 * at, 4 * at + 3)]]); })()"
    )
    for value, color in strip:  # blue or orange
        assert (color[2] - color[0]) * value >= 0 or abs(value) < 0.05 * max(abs(each) for each, _ in strip)
    strongest = max(strip, key=lambda each: abs(each[0]))[1]
    assert np.abs(np.array(strongest) - paper).max() > 120


def test_without_calculations_nothing_changes(opened: Any) -> None:
    browser: Browser = opened(translation())
    browser.click('[data-at="q-1"]')
    browser.click('[data-at="k-2"]')
    assert browser.count(".calculation") == 0
    assert browser.texts(".readout p")[0].startswith("dog is looked at by")
