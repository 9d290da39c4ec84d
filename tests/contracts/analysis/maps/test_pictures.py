"""Pictures of attention maps, drawn into a file."""

import re
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from manyheads.analysis.drawing import short_name
from manyheads.analysis.maps import AttentionMaps, Layer, attention_maps, picture
from manyheads.analysis.maps.page import page
from manyheads.analysis.maps.sides import Side
from manyheads.models import nonlocal_net
from tests.support.map_examples import example

SIZES: Any = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
EAGER: Any = {"attn_implementation": "eager"}


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("style", ["matrix", "lines"])
def test_a_picture_is_drawn(tmp_path: Path, suffix: str, style: Any) -> None:
    file = tmp_path / f"maps.{suffix}"
    example().draw(file, style=style)
    data = file.read_bytes()
    assert len(data) > 5000
    if suffix == "svg":
        assert b"likely" in data  # the token's name, from the comment next to its outline


def drawn(path: Path, *layers: Layer, **choices: Any) -> str:
    """Draw a picture of the layers and return its texts, from the comments next to their outlines."""
    AttentionMaps({"self": list(layers)}).draw(path / "drawn.svg", **choices)
    return "\n".join(re.findall("<!-- (.*?) -->", (path / "drawn.svg").read_text()))


def test_a_picture_shows_layers_heads_and_steps(tmp_path: Path) -> None:
    side = Side(("a", "b", "c"), (0, 1, 2), steps=(1, 2, 2))
    weights = np.full((1, 2, 3, 3), 1 / 3, np.float32)
    layer = Layer("stack.3.attention", 3, weights, (4, 7), side, side)
    assert {"layer 3: stack.3.attention", "head 4", "head 7", "b (2)"} <= set(
        drawn(tmp_path, layer, style="lines").splitlines()
    )
    assert {"layer 3", "head 7", "a (1)"} <= set(drawn(tmp_path, layer).splitlines())
    steps = [replace(layer, step=step) for step in (1, 2)]
    assert {"step 1", "step 2"} <= set(drawn(tmp_path, *steps).splitlines())


def test_pictures_of_many_maps_name_short_tokens_at_the_edges(tmp_path: Path) -> None:
    def names(tokens: int) -> Counter[str]:
        side = Side(tuple(f"token{i}" for i in range(tokens)), tuple(range(tokens)))
        layers = [Layer("x", i, np.ones((1, 2, tokens, tokens), np.float32), (0, 1), side, side) for i in range(3)]
        return Counter(drawn(tmp_path, *layers).splitlines())

    # next to the first head of each layer (3), below each head of the last layer (2)
    assert names(12)["token3"] == 3 + 2
    assert "token3" not in names(40)


def test_pictures_are_written_as_pdf(tmp_path: Path) -> None:
    example().draw(tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_uniform_attention_is_pale_in_a_picture() -> None:
    side = Side.positions(20)
    layer = Layer("x", 0, np.full((1, 1, 20, 20), 0.05, np.float32), (0,), side, side)
    assert picture._colors([layer]).norm.vmax == pytest.approx(0.2)
    assert picture._colors([replace(layer, weights=layer.weights * 2)]).norm.vmax == pytest.approx(0.1)  # no shares


def test_too_many_lines_in_a_picture_are_refused(tmp_path: Path) -> None:
    def layer(heads: int, tokens: int) -> Layer:
        side = Side.positions(tokens)
        return Layer("x", 0, np.zeros((1, heads, tokens, tokens), np.float32), tuple(range(heads)), side, side)

    for layers, message in (
        ([layer(7, 4)], r"lines of 7 heads cannot be distinguished: select at most 6 \(--heads 0,1\), or write a page"),
        (
            [layer(1, 81)],
            r"lines between 81 tokens cannot be distinguished: shorten the text to 80 tokens, or write a page",
        ),
        ([layer(6, 80)] * 2, r"76,800 lines is too large, expected at most 65,536: select fewer layers or heads"),
    ):
        with pytest.raises(ValueError, match=message):
            AttentionMaps({"self": layers}).draw(tmp_path / "none.png", style="lines")
    wrong: Any = {"style": "heat"}
    with pytest.raises(ValueError, match="style is 'heat': expected 'matrix' or 'lines'"):
        example().draw(tmp_path / "none.png", **wrong)
    with pytest.raises(
        TypeError, match=r"AttentionMaps.image\(\) has no option 'layers': valid are axis, style, query"
    ):
        example().image(layers=[5])  # type: ignore[call-arg]
    assert not (tmp_path / "none.png").exists()


def test_a_picture_uses_the_short_name_of_a_model(tmp_path: Path) -> None:
    for path, name in (
        ("/a/very/long/path/of/some/machine/runs/mine", "mine"),
        ("/cache/models--owner--some--name/snapshots/0123abcd", "owner/some--name"),
        ("mine", "mine"),
    ):
        assert short_name(path) == name
    layer = Layer("one", 0, np.ones((1, 1, 1, 1), np.float32), (0,), Side.positions(1), Side.positions(1))
    AttentionMaps({"self": [layer]}, "/a/path/of/mine", "hello").draw(tmp_path / "a.svg")
    assert "<!-- self attention of mine -->" in (tmp_path / "a.svg").read_text()


def test_missing_glyphs_are_reported_in_one_line(tmp_path: Path) -> None:
    side = Side(("\ue000", "\ue001"), (0, 1))
    layer = Layer("x", 0, np.full((1, 1, 2, 2), 0.5, np.float32), (0,), side, side)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notes = AttentionMaps({"self": [layer]}).draw(tmp_path / "a.png")
    assert notes == ["the picture's font lacks \ue000 \ue001: use a page (.html) to see them"]


def test_a_picture_of_an_image_shows_the_attention_of_a_patch(tmp_path: Path) -> None:
    model = nn.Sequential(nonlocal_net.NonLocalBlock(3))
    maps = attention_maps(model, torch.randn(1, 3, 4, 4), picture=np.zeros((4, 4, 3), np.uint8))
    maps.draw(tmp_path / "first.png", query=0)
    maps.draw(tmp_path / "other.png", query=5)
    assert (tmp_path / "first.png").read_bytes() != (tmp_path / "other.png").read_bytes()
    with pytest.raises(ValueError, match="token 16 does not exist: valid are 0 to 15"):
        maps.draw(tmp_path / "none.png", query=16)
    with pytest.raises(ValueError, match="applies to texts"):
        maps.draw(tmp_path / "none.png", style="lines")
    with pytest.raises(ValueError, match=r"none.jpg: expected a name that ends in .png, .svg or .pdf"):
        maps.draw(tmp_path / "none.jpg")


def test_the_picture_of_an_image_names_query_and_maximum(tmp_path: Path) -> None:
    """Two heads, one that looks evenly and one at a single patch; a name that is longer than the picture is wide."""
    side = Side.patches((4, 4), ["[class]"])
    weights = np.full((1, 2, 17, 17), 1 / 17, np.float32)
    weights[0, 1] = 0.1 / 16
    weights[0, 1, :, 6] = 0.9
    layer, long = Layer("x", 0, weights, (0, 1), side, side), "a-very/" * 20 + "end.png"
    maps = AttentionMaps({"self": [layer]}, "model", long, np.zeros((8, 8), np.uint8))
    maps.draw(tmp_path / "a.svg")
    texts = re.findall("<!-- (.*?) -->", (tmp_path / "a.svg").read_text(), re.DOTALL)
    assert {"5.9%", "90%", "1x", "10x", "times uniform attention (5.9%)"} <= set(texts)
    title = " ".join(" ".join(texts).split())
    assert "attention of [class]" in title
    assert "end.png" in title
    maps.draw(tmp_path / "even.png")
    with Image.open(tmp_path / "even.png") as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    left, right = np.array_split(pixels[: int(0.7 * len(pixels))], 2, axis=1)
    colorful = [int((half.max(-1) - half.min(-1)).max()) for half in (left, right)]
    assert colorful[0] == 0  # nothing is orange where the head looks evenly
    assert colorful[1] > 150


def test_pictures_of_many_heads_have_one_scale(tmp_path: Path) -> None:
    side = Side.positions(4)
    weights = np.full((1, 12, 4, 4), 0.25, np.float32)
    text = drawn(tmp_path, *(Layer("x", i, weights, tuple(range(12)), side, side) for i in range(6)))
    assert "fraction of a query's attention" in text
    assert "20%" in text


def test_a_page_shows_no_path_of_the_machine() -> None:
    one, other = replace(example(), model="/home/me/runs/a"), replace(example(), model="/home/me/runs/b")
    assert "/home/me" not in page([one, other])[0]
    assert "/home/you/a" in page([one, replace(one, model="/home/you/a")])[0]  # the names alone are the same
