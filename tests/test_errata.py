"""docs/errata.md: every section's examples come out as the page says, and draw the pictures that it shows."""

import re
from pathlib import Path

import pytest

from scripts.draw_errata import PAGE, run, sections

SECTIONS = sections()
LARGEST = 60_000  # bytes of a picture
PICTURE = re.compile(r'savefig\("(errata/[a-z]+\.png)"')


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_comes_out_as_the_page_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = SECTIONS[name]
    code = "".join(example.source for example in section.examples)
    if "from transformers" in code:
        pytest.importorskip("transformers", reason="the section shows what transformers returns: pip install it")
    (tmp_path / "errata").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(section) == ""
    drawn = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert drawn == set(PICTURE.findall(code))


def test_the_page_shows_the_pictures_that_it_draws_and_they_are_small() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"!\[.+\]\((.+)\)", text)
    assert sorted(shown) == sorted(PICTURE.findall(text))
    assert {PAGE.parent / name for name in shown} == set(PAGE.with_suffix("").iterdir())
    assert all((PAGE.parent / name).stat().st_size < LARGEST for name in shown)


def test_every_erratum_has_an_example_or_a_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    places = re.findall(r"^## (E.+?):", text, re.MULTILINE) + re.findall(r"^\| (E\d+) \|", text, re.MULTILINE)
    found = [int(number) for place in places for number in re.findall(r"E(\d+)", place)]
    assert sorted(found) == list(range(1, 28))


def test_examples_are_short() -> None:
    blocks = re.findall(r"```pycon\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    code = [[line for line in block.splitlines() if line.startswith((">>>", "..."))] for block in blocks]
    assert {lines[0]: len(lines) for lines in code if len(lines) > 15} == {}


def test_a_wrong_result_is_told_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## One\n\n```pycon\n>>> 1 + 1\n3\n```\n\n## Two\n\n```pycon\n>>> 1 + 1\n2\n```\n")
    found = sections(page)
    assert list(found) == ["One", "Two"]
    assert run(found["Two"]) == ""
    told = run(found["One"])
    assert "line 6, in One" in told
    assert "Expected:\n    3\nGot:\n    2" in told
