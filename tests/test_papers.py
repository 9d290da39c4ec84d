"""docs/papers/: the code, counts and commands that the pages show are those that there are."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from manyheads import cli
from manyheads.analysis.costs import preset_model
from manyheads.models.presets import FAMILIES, family_of
from manyheads.recipes.overrides import apply, from_arguments
from manyheads.recipes.table import RECIPES
from scripts.results_table import PAPERS

FOLDER = Path(__file__).parents[1] / "docs" / "papers"
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.md"))}
INDEX = PAGES.pop("index")
LONGEST = 40  # lines of code at once
WORDS = 900  # of a page with its equations, without tables and code

INCLUDED = re.compile(r"^```\{literalinclude\} (\S+)\n((?::.*\n)+)```$", re.MULTILINE)
COUNT = re.compile(r"^\| `manyheads summary (\S+)` \| ([\d,]+) \|", re.MULTILINE)
COMMAND = re.compile(r"^manyheads (.+)$", re.MULTILINE)


class Included(NamedTuple):
    """What a directive includes: a file, and of it what its options say."""

    page: str
    file: Path
    options: dict[str, str]

    def lines(self) -> list[str]:
        """As Sphinx would take them: the definition, from the first line with one text to the next with another."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        if name := self.options.get("pyobject"):
            node: ast.AST = ast.parse("\n".join(lines))
            for part in name.split("."):
                (node,) = (child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
            assert isinstance(node, ast.FunctionDef | ast.ClassDef)
            lines = lines[node.lineno - 1 : node.end_lineno]
        if start := self.options.get("start-at"):
            at = [number for number, line in enumerate(lines) if start in line]
            assert len(at) == 1, f"{start!r} begins {len(at)} lines"
            lines = lines[at[0] :]
        if end := self.options.get("end-at"):
            lines = lines[: [end in line for line in lines].index(True) + 1]
        return lines


def included() -> Iterator[Included]:
    for page, text in PAGES.items():
        for path, options in INCLUDED.findall(text):
            yield Included(page, FOLDER / path, dict(re.findall(r"^:([\w-]+): ?(.*)$", options, re.MULTILINE)))


def commands() -> Iterator[str]:
    for text in PAGES.values():
        for block in re.findall(r"^```\n(.+?)^```$", text, re.MULTILINE | re.DOTALL):
            yield from COMMAND.findall(block)


@pytest.mark.parametrize("code", list(included()), ids=lambda code: f"{code.page}: {code.options.get('pyobject')}")
def test_code_of_a_page_is_found(code: Included) -> None:
    assert set(code.options) <= {"language", "pyobject", "dedent", "start-at", "end-at"}
    assert code.options["language"] == "python"
    lines = code.lines()
    assert 0 < len(lines) <= LONGEST
    assert lines[0].startswith(" ") == ("dedent" in code.options)


def test_code_comes_from_the_code() -> None:
    assert all(text.count("```{literalinclude}") == len(INCLUDED.findall(text)) > 0 for text in PAGES.values())
    assert not any("```python" in text for text in PAGES.values())


def test_a_definition_that_went_away_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("class A:\n    def f(self):\n        x = 1\n        return x\n")
    here = Included("page", file, {"pyobject": "A.f", "start-at": "x =", "end-at": "return"})
    assert here.lines() == ["        x = 1", "        return x"]
    for change in ({"pyobject": "A.g"}, {"start-at": "y ="}, {"end-at": "yield"}):
        with pytest.raises((ValueError, AssertionError)):
            here._replace(options={**here.options, **change}).lines()


@pytest.mark.parametrize(("name", "count"), [row for text in PAGES.values() for row in COUNT.findall(text)])
def test_a_count_is_that_of_summary(name: str, count: str) -> None:
    assert f"{sum(parameter.numel() for parameter in preset_model(name).parameters()):,}" == count


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_of_a_page_is_understood(command: str) -> None:
    words = shlex.split(command, comments=True)
    assert cli._parse(words).name == words[0]
    if words[0] == "train":  # settings, too
        apply(RECIPES[words[1]].config, from_arguments(word for word in words[2:] if re.match(r"[\w.]+=", word)))


def test_every_page_has_its_parts() -> None:
    parts = ["Equations and code", "What differs from", "Exact counts", "Measured here", "Run it", "Look inside"]
    for page, text in PAGES.items():
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert len(headings) == len(parts), page
        assert all(heading.startswith(part) for heading, part in zip(headings, parts, strict=True)), page
        assert "$$" in text, page
        assert {"../inside.md", "../errata.md"} <= set(re.findall(r"\]\(([^)]+)\)", text)), page


def test_a_page_is_read_in_five_minutes() -> None:
    for page, text in PAGES.items():
        prose = re.sub(r"^(```.*?^```|\|.*?)$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert len(prose.split()) < WORDS, page


def test_every_model_has_a_page() -> None:
    shown = {code.file.resolve() for code in included()}
    models = FOLDER.parents[1] / "manyheads" / "models"
    assert {models / f"{family.module}.py" for family in FAMILIES.values()} <= shown
    counted = {family_of(name) for text in PAGES.values() for name, _ in COUNT.findall(text)}
    assert counted == set(FAMILIES) - {"universal-sequence", "bert-features", "directions"}  # those without presets


def test_links_lead_somewhere_and_the_index_has_all_pages() -> None:
    for text in (INDEX, *PAGES.values()):
        links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://arxiv.org/")]
        assert [link for link in links if not (FOLDER / link).is_file()] == []
    listed = re.findall(r"^\| \[.+?\]\((.+?)\.md\)", INDEX, re.MULTILINE)
    contents = re.findall(r"^[a-z0-9-]+$", INDEX.split("{toctree}")[1], re.MULTILINE)
    assert listed == contents
    assert sorted(listed) == sorted(PAGES)


def test_every_page_has_what_was_measured() -> None:
    assert {*PAPERS, "heads"} == set(PAGES)
    assert {recipe for recipes in PAPERS.values() for recipe in recipes} <= set(RECIPES)
