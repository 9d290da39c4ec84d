"""docs/explanation/errata.md: the examples of each section give the output and the pictures shown on the page."""

import re
from pathlib import Path

import pytest

from scripts.draw_errata import PAGE, run, sections

SECTIONS = sections()
LARGEST = 60_000  # bytes of a picture
PICTURE = re.compile(r'savefig\("(errata/[a-z]+\.png)"')


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_of_the_errata_reproduces(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = SECTIONS[name]
    code = "".join(example.source for example in section.examples)
    if "from transformers" in code:
        pytest.importorskip("transformers", reason="the section shows what transformers returns: pip install it")
    (tmp_path / "errata").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(section) == ""
    drawn = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert drawn == set(PICTURE.findall(code))


def test_the_page_shows_small_pictures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"!\[.+\]\((.+)\)", text)
    assert sorted(shown) == sorted(PICTURE.findall(text))
    assert {PAGE.parent / name for name in shown} == set(PAGE.with_suffix("").iterdir())
    assert all((PAGE.parent / name).stat().st_size < LARGEST for name in shown)


def test_every_erratum_has_an_example_or_a_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^### (E.+?):", text, re.MULTILINE)
    found = [number for heading in headings for number in numbers(heading)]
    assert sorted(found) == list(range(1, 45))
    rows = re.findall(r"^\| (E\d+) \|", text, re.MULTILINE)
    assert ", ".join(rows) in headings  # those in one line each


def test_every_erratum_names_its_source_and_evidence() -> None:
    for text in re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        told = re.compile(r"The statement is from the (textbook|blog|slides|lecture)\b.*\. We checked it with .+\.$")
        assert told.match(text.splitlines()[2]) or text.count("\n| E") > 1, text[:40]  # a table has columns for both


def test_the_kinds_of_errata_match_their_sections() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = re.findall(r"^\| (?:an error|a slip|ambiguous|a limit|withdrawn).* \| (E.+) \|$", text, re.MULTILINE)
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    under = [re.findall(r"^### (E.+?):", part, re.MULTILINE) for part in parts]
    assert [numbers(row) for row in table] == [sorted(numbers(" ".join(headings))) for headings in under]
    ambiguous = [6, 15, 16, 20, 21, 27, 31, 41, 44]
    assert [numbers(row) for row in table[1:]] == [[17, 23, 25, 26], ambiguous, [5, 9, 22], [19]]


def numbers(text: str) -> list[int]:
    """`E1 to E3, E5` -> 1, 2, 3, 5."""
    found = re.findall(r"E(\d+)(?: to E(\d+))?", text)
    return [number for first, last in found for number in range(int(first), int(last or first) + 1)]


def test_example_pages_are_short() -> None:
    blocks = re.findall(r"```pycon\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    code = [[line for line in block.splitlines() if line.startswith((">>>", "..."))] for block in blocks]
    assert {lines[0]: len(lines) for lines in code if len(lines) > 15} == {}


def test_a_wrong_result_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n### One\n\n```pycon\n>>> 1 + 1\n3\n```\n\n### Two\n\n```pycon\n>>> 1 + 1\n2\n```\n")
    found = sections(page)
    assert list(found) == ["One", "Two"]
    assert run(found["Two"]) == ""
    told = run(found["One"])
    assert "line 6, in One" in told
    assert "Expected:\n    3\nGot:\n    2" in told
