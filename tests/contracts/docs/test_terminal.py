"""Terminal recordings: the printed lines and their times."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.record_terminal import LONGEST_WAIT, ROWS, Line, recorded, svg
from tests.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"


def test_recorded_output_keeps_its_timing(tmp_path: Path) -> None:
    lines = recorded(["echo one; sleep 1; printf '\\033[1mtwo <&>\\033[0m\\n'", "pwd >&2"], tmp_path)
    assert [line.text for line in lines if line.kind in ("", "bold")] == ["one", "two <&>", str(tmp_path)]
    assert [line.kind for line in lines] == ["typed", "", "bold", "told", "typed", "", "told"]
    one, two = lines[1:3]
    assert two.second - one.second == pytest.approx(LONGEST_WAIT)
    assert lines[3].text in ("# 1 s", "# 2 s")  # the measured duration
    assert [text.text for text in ElementTree.fromstring(svg(lines)).iter(f"{SVG}text")] == [
        line.text for line in lines
    ]


def test_a_failed_command_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="false: exit status 1"):
        recorded(["false"], tmp_path)


def test_the_last_metrics_are_read_at_the_end() -> None:
    picture = svg([Line(float(number), f"line {number}") for number in range(ROWS + 5)])
    assert "<script" not in picture
    assert "translateY(-95px); animation: up" in picture  # five lines of 19 pixels
    assert "animation: none" in picture  # where the reader wants nothing to move


def test_the_recording_shows_documented_commands() -> None:
    picture = ROOT / "docs" / "images" / "first-minute.svg"
    if not picture.exists():
        pytest.skip("none is kept")
    texts = [text.text or "" for text in ElementTree.parse(picture).iter(f"{SVG}text")]
    assert texts[0] == "$ make demo"
    assert any("5. März 2031" in text for text in texts)
    assert picture.stat().st_size < 150_000
