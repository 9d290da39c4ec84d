"""docs/tutorials/concordance.md: every item of the sources has a home, and every mark of a tutorial has an item."""

import re
from pathlib import Path
from typing import Any

import pytest

from lab import concordance_page as page
from lab.concordance_page import Item
from manyheads.models.presets import PRESETS
from tests.contracts.docs.test_pages import COMMAND
from tests.contracts.papers.test_commands import COMMAND as PAPER

ITEMS = [item for _, items in page.read_items().values() for item in items]
PLACED = page.marks()
CHAPTER = {"trans4", "rnn38", "rnn65", "trans1", "rnn87", "trans2", "trans3", "TransformerBlock", "trans23", "trans5"}
MIN_ITEMS = 142  # items of the sources that a reader listed for a review


def item(**fields: Any) -> Item:
    return Item(**{"key": "a", "kind": "figure", "place": "slide 1", "name": "a figure", **fields})


def tutorial(docs: Path, text: str) -> Path:
    source = docs / "tutorials" / "source" / "one.md"
    source.parent.mkdir(parents=True)
    source.write_text(text)
    return docs


def test_the_page_has_every_item_that_was_listed() -> None:
    assert len(ITEMS) >= MIN_ITEMS
    figures = {listed.place.removeprefix("figure ") for listed in ITEMS if listed.place.startswith("figure ")}
    assert figures == CHAPTER


@pytest.mark.parametrize(("source", "last", "titles"), [("slides", 44, set()), ("lecture", 36, {12, 25, 35})])
def test_every_slide_but_titles_has_an_item(source: str, last: int, titles: set[int]) -> None:
    found = set()
    for listed in page.read_items()[source][1]:
        for begin, end in re.findall(r"(\d+)(?: to (\d+))?", listed.place):
            found |= {*range(int(begin), int(end or begin) + 1)}
    assert found == {*range(2, last + 1)} - titles


@pytest.mark.parametrize("listed", ITEMS, ids=lambda item: item.key)
def test_an_item_has_a_home(listed: Item) -> None:
    assert page.row(listed, PLACED).count("|") == 5  # four columns


def test_every_command_is_of_a_kind_that_a_test_parses() -> None:
    """tests/contracts/docs/test_pages.py and tests/contracts/papers/test_commands.py parse these two kinds."""
    commands = [listed.command for listed in ITEMS if listed.command]
    assert len(commands) > 80
    assert [command for command in commands if not COMMAND.match(command) and not PAPER.match(command)] == []
    sizes = {command.split()[2] for command in commands if command.startswith("manyheads summary ")}
    presets = {word.removeprefix("preset=") for command in commands for word in command.split() if "preset=" in word}
    assert {*sizes, *presets} <= {*PRESETS}


def test_every_mark_has_an_item() -> None:
    assert {*PLACED} <= {item.key for item in ITEMS}


def test_an_item_without_a_home_is_reported(tmp_path: Path) -> None:
    docs = tutorial(
        tmp_path, "# One\n\n## Two: `x`\n\n```{code-cell} python\n# not a heading\n```\n<!-- item: b -->\nText.\n"
    )
    placed = page.marks(docs)
    (at,) = placed["b"]
    assert (at.heading.url, at.heading.code_cells, at.code_cells) == ("tutorials/one.ipynb#two-x", 0, 1)
    assert page.homes(item(key="b"), placed, docs) == [at.heading]
    with pytest.raises(ValueError, match="item a has no home"):
        page.homes(item(), placed, docs)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("papers/none.md", "papers/none.md does not exist"),
        ("tutorials/source/one.md#three", "has no heading with the anchor three"),
    ],
)
def test_a_dead_link_is_reported(target: str, fault: str, tmp_path: Path) -> None:
    docs = tutorial(tmp_path, "# One\n\n## Two\n")
    with pytest.raises(ValueError, match=fault):
        page.homes(item(pages=(target,)), {}, docs)


def test_a_mark_above_the_first_heading_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one.md: the mark of a is above the first heading"):
        page.marks(tutorial(tmp_path, "<!-- item: a -->\n# One\n"))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"kind": "photo"}, "expected a kind"),
        ({"kind": "claim"}, "a claim has a verdict"),
        ({"verdict": "shown"}, "other items have none"),
        ({"kind": "claim", "verdict": "proved"}, "found proved"),
    ],
)
def test_a_wrong_item_is_reported(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        item(**fields)


def test_an_unknown_field_and_a_second_key_are_reported(tmp_path: Path) -> None:
    entry = '[[item]]\nkey = "a"\nkind = "figure"\nplace = "slide 1"\nname = "a figure"\n'
    for name in page.SOURCES:
        (tmp_path / f"{name}.toml").write_text(f'source = "{name}"\n{entry}'.replace('"a"', f'"{name}"'))
    assert len(page.read_items(tmp_path)) == len(page.SOURCES)
    (tmp_path / "blog.toml").write_text(f'source = "blog"\n{entry}{entry}')
    with pytest.raises(ValueError, match="item a occurs twice"):
        page.read_items(tmp_path)
    (tmp_path / "blog.toml").write_text(f'source = "blog"\n{entry}shade = "red"\n')
    with pytest.raises(ValueError, match=r"blog.toml: item a: .*shade"):
        page.read_items(tmp_path)


def test_verdicts_with_a_letter_come_from_the_page_of_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    found = page.verdicts_of_claims()
    assert found["a"] == "shown"
    assert found["o"] == "not decided, in part not tested", "the first row of a letter"
    text = page.row(item(kind="claim", verdict="(a)"), {"a": PLACED["trans4"]})
    assert "**shown** ([claim a](../measured/evidence.md))" in text
    with pytest.raises(ValueError, match="the errata have no E99"):
        page.row(item(errata=("E99",)), {"a": PLACED["trans4"]})
    monkeypatch.setattr(page, "verdicts_of_claims", lambda: {"b": "shown"})
    with pytest.raises(ValueError, match=r"has no claim \(a\)"):
        page.row(item(kind="claim", verdict="(a)"), {"a": PLACED["trans4"]})


def test_anchors_are_those_of_the_site() -> None:
    assert page.anchor("9. Attention: I am a student → Je suis étudiant") == "attention-i-am-a-student-je-suis-etudiant"
    assert page.anchor("model.fit: fifteen epochs") == "model-fit-fifteen-epochs"
    assert page.anchor("E32, E33: the `output`") == "e32-e33-the-output"


def test_links_of_the_page_lead_to_anchors_of_the_site() -> None:
    """The site's own check (scripts/check_site.py) reads the built page; this one needs no build."""
    for listed in ITEMS:
        for heading in page.homes(listed, PLACED):
            assert heading.anchor in {at.anchor for at in page.headings(heading.path)} | {""}
