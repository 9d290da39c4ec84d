"""Commands shown in the documentation: each exists and accepts its options."""

import re
import shlex
from pathlib import Path

import pytest

from lab.concordance_page import read_items
from manyheads import cli
from manyheads.cli import train as train_verb
from manyheads.runs.overrides import apply, from_arguments
from manyheads.tasks.registry import find
from tests.paths import ROOT

EXTENDING = ROOT / "docs" / "extending"  # its commands need its examples: tests/system/test_examples.py runs them
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent != EXTENDING)]
VERBS = ROOT / "docs" / "reference" / "commands.md"
COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?manyheads (?=[a-z])(.*)$", re.MULTILINE)


def blocks(page: Path) -> str:
    """Return the text of the fenced blocks of a page, with continued lines joined."""
    return "\n".join(page.read_text().replace("\\\n", " ").split("```")[1::2])


def commands() -> list[str]:
    """Return the commands in fenced blocks of the pages, and those of the concordance."""
    listed = (item.command for _, items in read_items().values() for item in items)
    return [found for text in (*map(blocks, PAGES), *listed) for found in COMMAND.findall(text)]


def words(command: str) -> list[str]:
    return shlex.split(re.split(r" [<>|] ", command)[0], comments=True)


def verbs_of_the_table() -> list[tuple[str, list[str]]]:
    rows = re.findall(r"^\| `manyheads ([a-z|]+)(.*)$", VERBS.read_text(), re.MULTILINE)
    return [(verb, re.findall(r"(?<![\w-])--[a-z0-9-]+", row)) for verb, row in rows]


def test_the_pages_show_commands() -> None:
    assert len(commands()) > 20
    assert {verb for verb, _ in verbs_of_the_table()} == set(cli._parsers()[1])


def test_commands_on_pages_parse(subtests: pytest.Subtests) -> None:
    for command in commands():
        given = words(command)
        with subtests.test(command):
            options = cli._parse(given)
            assert options.name == given[0]
            if given[0] == "train":  # settings, too
                recipe, settings, resume = train_verb._words(options)
                assert recipe or resume
                # A resumed run has the settings of its recipe.
                apply(find(recipe or "translation").starting_config(options.init), from_arguments(settings))


@pytest.mark.parametrize(("verb", "flags"), verbs_of_the_table())
def test_each_verb_has_its_options(verb: str, flags: list[str]) -> None:
    known = {flag for action in cli._parsers()[1][verb]._actions for flag in action.option_strings}
    assert set(flags) <= known
