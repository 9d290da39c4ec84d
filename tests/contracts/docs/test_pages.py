"""The commands that the pages show are commands that there are."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from manyheads import cli
from manyheads.tasks.train import train
from tests.paths import ROOT

HOUSE = ROOT / "docs" / "house.md"  # shows commands of what a reader adds: tests/system/test_house.py types them
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {HOUSE})]
VERBS = ROOT / "docs" / "commands.md"
COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?manyheads (?=[a-z])(.*)$", re.MULTILINE)


def blocks(page: Path) -> str:
    """What stands between fences, with continued lines joined."""
    return "\n".join(page.read_text().replace("\\\n", " ").split("```")[1::2])


def commands() -> list[str]:
    return [found for page in PAGES for found in COMMAND.findall(blocks(page))]


def words(command: str) -> list[str]:
    return shlex.split(re.split(r" [<>|] ", command)[0], comments=True)


def verbs_of_the_table() -> list[tuple[str, list[str]]]:
    rows = re.findall(r"^\| `manyheads ([a-z|]+)(.*)$", VERBS.read_text(), re.MULTILINE)
    return [(verb, re.findall(r"(?<![\w-])--[a-z0-9-]+", row)) for verb, row in rows]


def test_the_pages_show_commands() -> None:
    assert len(commands()) > 20
    assert {verb for verb, _ in verbs_of_the_table()} == set(cli._parsers()[1])


TEACHER = {"training.epochs": 1, "preset": "vit/2-8", "model.width": 8, "model.layers": 1, "model.heads": 1}


TEXTS = {  # of a recipe whose name begins so: files of the placeholder's folder
    "translation": {"train.en": "one\ntwo\n", "train.de": "eins\nzwei\n", "train.fr": "un\ndeux\n"},
    "imdb": {"train.tsv": "text\tlabel\ngood\t1\nbad\t0\n"},
    "language-modelling": {"part-1.txt": "one\n", "part-2.txt": "two\n"},
    "reading": {"train.conll": "John B-PER\n\nran O\n"},
}


def lay(data: Path, recipe: str) -> None:
    """Data of a page's placeholder, so that a dry run has something to look at."""
    if data.suffix == ".txt":
        data.write_text("one\ntwo\n")
        return
    for beginning, files in TEXTS.items():
        if recipe.startswith(beginning):
            data.mkdir()
            for name, content in files.items():
                (data / name).write_text(content)
            return
    for number, name in enumerate(("a", "b")):
        (data / "train" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (number, 0, 0)).save(data / "train" / name / "0.png")


@pytest.mark.parametrize("command", commands())
def test_a_command_of_a_page_is_understood(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = words(command)
    monkeypatch.chdir(tmp_path)
    for word in given:  # a dry run looks at the data
        if word.startswith("data="):
            lay(Path(word.removeprefix("data=")), given[1])
        if word.startswith("teacher="):
            train("image-classification", TEACHER, out=word.removeprefix("teacher="))
    if given[0] == "train" and "--init" not in given:  # settings, too
        assert cli.main([*given, "--dry-run"]) == 0, capsys.readouterr().err
    else:
        assert cli._parse(given).name == given[0]


@pytest.mark.parametrize(("verb", "flags"), verbs_of_the_table())
def test_a_verb_of_the_table_has_its_options(verb: str, flags: list[str]) -> None:
    known = {flag for action in cli._parsers()[1][verb]._actions for flag in action.option_strings}
    assert set(flags) <= known
