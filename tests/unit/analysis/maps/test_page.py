"""Content of the page of attention maps."""

import base64
import re
import zlib

import numpy as np
import pytest

from manyheads.analysis.maps import AttentionMaps, Layer
from manyheads.analysis.maps.page import PATCHES, SHOWN, frame, page
from manyheads.analysis.maps.sides import Side
from tests.support.map_examples import GERMAN, data_of, image, layers, translation


def test_weights_are_quantized_to_half_a_percent_of_the_maximum() -> None:
    maps = translation()
    (panel,) = data_of(page([maps])[0])["panels"]
    data = np.frombuffer(zlib.decompress(base64.b64decode(panel["maps"])), np.uint8)
    at = 0
    for axis, notes in zip(maps.axes.values(), panel["axes"], strict=True):
        for layer, about in zip(axis, notes["layers"], strict=True):
            size = layer.weights.size
            shares = (data[at : at + size].reshape(layer.weights.shape) / 255.0) ** 2
            at += size
            largest = np.array(about["scale"])[:, None, None]
            assert (np.abs(shares * largest - layer.weights) <= 0.004 * largest).all()
    assert at == len(data)


def test_negative_weights_keep_their_sign() -> None:
    side = Side.positions(3)
    signed = np.array([[[[0.5, -1.0, 0.0], [0.1, 0.2, 0.3], [-0.1, 0.0, 0.0]]]], np.float32)
    (panel,) = data_of(page([AttentionMaps({"self": [Layer("x", 0, signed, (0,), side, side)]})])[0])["panels"]
    steps = np.frombuffer(zlib.decompress(base64.b64decode(panel["maps"])), np.uint8).reshape(3, 3) - 128.0
    assert panel["axes"][0]["layers"][0]["signed"]
    np.testing.assert_allclose(np.sign(steps) * (steps / 127) ** 2, signed[0, 0], atol=0.004)


def test_a_page_with_12_layers_of_12_heads_is_below_2_megabytes() -> None:
    side = Side.positions(64)
    html, notes = page([AttentionMaps({"self": layers(0, 12, 12, side, side)})])
    assert len(html.encode()) < 2_000_000
    assert notes == []


def test_the_page_loads_nothing_external() -> None:
    html = page([translation(), image()])[0]
    code = html.replace(data_of(html)["panels"][1]["picture"], "")
    code = code.replace("http://www.w3.org/2000/svg", "")  # a name that saved files contain
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:)|url\((?!#)|@import|https?://|fetch\(|XMLHttp""", code)
    assert "<b>ran" not in html  # a text is no markup
    assert data_of(html)["panels"][0]["title"].endswith("{{data}} → Der Hund lief heim")


def test_a_long_text_is_truncated_with_a_warning() -> None:
    side = Side.positions(SHOWN + 40)
    maps = AttentionMaps({"self": layers(0, 1, 1, side, side)}, "m", "a long text")
    html, notes = page([maps])
    assert notes == [f"a long text: tokens 1 to {SHOWN} of {SHOWN + 40} are shown; use --first N for others"]
    assert data_of(html)["panels"][0]["sides"][0]["tokens"][-1] == str(SHOWN - 1)
    html, notes = page([maps], first=SHOWN + 30)
    assert notes == [f"a long text: tokens 41 to {SHOWN + 40} of {SHOWN + 40} are shown; use --first N for others"]
    assert data_of(html)["panels"][0]["sides"][0] | {"words": 0} == {
        "tokens": [str(at) for at in range(40, SHOWN + 40)], "words": 0, "grid": None, "cover": [1, 1], "steps": None,
        "first": 40, "total": SHOWN + 40,
    }  # fmt: skip


def test_a_note_gives_the_range_of_each_text() -> None:
    source, target = Side.positions(SHOWN + 40), Side.positions(SHOWN + 4)
    axes = {"encoder": layers(0, 1, 1, source, source), "cross": layers(0, 1, 1, target, source)}
    title = "a\nlong text " * 40
    _, notes = page([AttentionMaps(axes, "m", title)], first=20)
    assert [note.partition(": ")[2] for note in notes] == [
        f"source tokens 21 to {SHOWN + 20} of {SHOWN + 40} are shown; use --first N for others",
        f"target tokens 5 to {SHOWN + 4} of {SHOWN + 4} are shown; use --first N for others",
    ]
    assert all(len(note) < 150 and "\n" not in note for note in notes)
    short = Side.positions(3)
    (note,) = page([AttentionMaps({"cross": layers(0, 1, 1, short, source)}, "m", "t")], first=20)[1]
    assert note == f"t: source tokens 21 to {SHOWN + 20} of {SHOWN + 40} are shown; use --first N for others"


def test_impossible_pages_are_refused() -> None:
    side = Side.positions(SHOWN + 9)
    long = AttentionMaps({"self": layers(0, 1, 1, side, side)})
    for maps, first, message in (
        (translation(), -5, "first is -5: expected the index of a token, 0 or more"),
        (translation(), 9998, "cannot begin with token 9,999: all 10 tokens of the text are shown"),
        (image(), 3, "cannot begin with token 4: the input is not a text"),
        (long, SHOWN + 9, f"cannot begin with token {SHOWN + 10}: the text has {SHOWN + 9} tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            page([maps], first)
    broken = layers(0, 1, 1, GERMAN, GERMAN)[0]
    broken.weights[0, 0, 1, 2] = np.nan
    with pytest.raises(ValueError, match=r"stack.0 has weights that are NaN or infinite: a page needs finite weights"):
        page([AttentionMaps({"self": [broken]})])


def test_too_many_patches_are_merged_with_a_note() -> None:
    maps = image((40, 30), 1)
    html, notes = page([maps])
    assert "patches are merged" in notes[0]
    (panel,) = data_of(html)["panels"]
    assert panel["sides"][0]["grid"] == [20, 15]
    assert len(panel["sides"][0]["tokens"]) == 301 <= PATCHES
    bytes_of = np.frombuffer(zlib.decompress(base64.b64decode(panel["maps"])), np.uint8)[: 301 * 301].reshape(301, 301)
    merged = (bytes_of / 255.0) ** 2 * panel["axes"][0]["layers"][0]["scale"][0]
    before = maps["self"][0].weights[0, 0]
    np.testing.assert_allclose(merged[0, 0], before[0, 0], atol=0.005)
    np.testing.assert_allclose(merged[0, 2], before[0, [3, 4, 33, 34]].sum(), atol=0.005)  # patches 0..1, 2..3


def test_an_odd_row_of_patches_keeps_its_position() -> None:
    (panel,) = data_of(page([image((35, 33), 1)])[0])["panels"]
    (side,) = panel["sides"]
    assert side["grid"] == [18, 17]
    for axis, patches in enumerate((35, 33)):
        cell = side["cover"][axis] / side["grid"][axis]
        assert cell == pytest.approx(2 / patches)  # of the image, whose last patch is half of its cell


def test_a_class_token_is_not_a_patch() -> None:
    html, notes = page([image((32, 32), 1)])
    assert data_of(html)["panels"][0]["sides"][0]["grid"] == [32, 32]
    assert notes == []


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    shown = translation()._repr_html_()
    assert shown.startswith('<iframe class="manyheads" srcdoc=')
    assert 'sandbox="allow-scripts allow-downloads"' in shown
    assert shown == frame([translation()])
