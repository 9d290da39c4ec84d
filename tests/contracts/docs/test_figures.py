"""docs/tutorials/figures.md: every figure of the sources has a picture and a place; diagrams of boxes and arrows."""

import base64
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lab import concordance_page, diagrams, figures_page
from lab.concordance_page import Item
from tests.paths import ROOT

FIGURES = figures_page.figures()
PLACED = concordance_page.marks()
MAX_BYTES = 600_000  # of all small pictures
NOTATION = ROOT / "docs" / "tutorials" / "notation.md"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda item: item.key)
def test_a_figure_has_a_mark_and_a_small_picture(figure: Item) -> None:
    """Pictures of notebooks change whenever a notebook is built: run `python -m lab.figures_page`."""
    assert figure.key in PLACED
    file = figures_page.picture(figure)
    assert 500 < file.stat().st_size < 50_000
    if file.suffix == ".png":
        assert base64.b64encode(file.read_bytes()).startswith(b"iVBORw0KGgo")
        assert figure.picture or figures_page.png_after(PLACED[figure.key][0])


def test_the_folder_has_no_other_pictures() -> None:
    expected = {file for figure in FIGURES if (file := figures_page.picture(figure)).parent == figures_page.PICTURES}
    assert {*figures_page.PICTURES.iterdir()} == expected
    assert sum(file.stat().st_size for file in expected) < MAX_BYTES


@pytest.mark.parametrize("figure", [item for item in FIGURES if item.rows], ids=lambda item: item.key)
def test_a_diagram_is_current_and_its_texts_fit(figure: Item) -> None:
    text = figures_page.picture(figure).read_text(encoding="utf-8")
    assert text == diagrams.svg(figure.rows, figure.arrows, figure.name), "run `python -m lab.figures_page`"
    root = ET.fromstring(text)
    sizes = [float(node.attrib["font-size"]) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert min(sizes) >= 7


def test_boxes_and_arrows_are_placed() -> None:
    rows = ["top", "a: left | b: right"]
    found = diagrams.boxes(rows)
    assert (found["top"].label, found["a"].label, found["b"].row) == ("top", "left", 1)
    assert found["a"].right < found["b"].left
    assert found["top"].right == pytest.approx(found["b"].right)
    assert len([*diagrams.paths("a > top, b > top, a > b, * ~ top", found)]) == 6
    with pytest.raises(ValueError, match="two boxes have the name a"):
        diagrams.boxes(["a", "a: b"])
    with pytest.raises(ValueError, match="the arrow a > c has no box at an end"):
        [*diagrams.paths("a > c", found)]


def test_a_mark_without_a_picture_below_is_reported() -> None:
    place = PLACED["trans4"][0]
    beyond = concordance_page.Place(place.heading, 10_000)
    with pytest.raises(ValueError, match="expected a picture after the mark"):
        figures_page.png_after(beyond)


def test_names_of_the_notation_are_in_the_code() -> None:
    rows = re.findall(r"^\|.*\| ([^|]+) \|$", NOTATION.read_text(encoding="utf-8"), re.MULTILINE)
    names = {
        name for row in rows for code in re.findall(r"`([^`]+)`", row) for name in re.findall(r"[A-Za-z_]{2,}", code)
    }
    code = "".join(file.read_text(encoding="utf-8") for file in Path(ROOT, "manyheads").rglob("*.py"))
    assert len(names) > 30
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", code)) == []
