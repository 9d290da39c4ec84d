"""docs/papers/: the code, counts and commands on the pages match the package."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from lab import results_table
from lab.records import records
from lab.results_table import PAPERS
from manyheads import cli
from manyheads.analysis.costs import preset_model
from manyheads.models.presets import FAMILIES, family_of, preset
from manyheads.runs.overrides import apply, from_arguments
from manyheads.tasks.registry import RECIPES
from tests.paths import ROOT

FOLDER = ROOT / "docs" / "papers"
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.md"))}
INDEX = PAGES.pop("index")
LONGEST = 40  # lines of code at once
WORDS = 900  # of a page with its equations, without tables and code

INCLUDED = re.compile(r"^```\{literalinclude\} (\S+)\n((?::.*\n)+)```$", re.MULTILINE)
COUNT = re.compile(r"^\| `manyheads summary (\S+)` \| ([\d,]+) \|", re.MULTILINE)
SETTING = re.compile(r"`(?:model|network)\.(\w+)(?:=(\S+?))?`")
COMMAND = re.compile(r"^manyheads (.+)$", re.MULTILINE)


class Included(NamedTuple):
    """Inclusion of a file in a page: the file and the options that select its lines."""

    page: str
    file: Path
    options: dict[str, str]

    def lines(self) -> list[str]:
        """Return the included lines as Sphinx does: a definition, or the lines from one given text to the next."""
        lines = self.file.read_text(encoding="utf-8").splitlines()
        if name := self.options.get("pyobject"):
            node: ast.AST = ast.parse("\n".join(lines))
            for part in name.split("."):
                (node,) = (child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
            assert isinstance(node, ast.FunctionDef | ast.ClassDef)
            first = min(line.lineno for line in (node, *node.decorator_list))
            lines = lines[first - 1 : node.end_lineno]
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
            yield from COMMAND.findall(block.replace("\\\n", " "))


def test_included_code_exists(subtests: pytest.Subtests) -> None:
    for code in included():
        with subtests.test(f"{code.page}: {code.options.get('pyobject')}"):
            assert set(code.options) <= {"language", "pyobject", "dedent", "start-at", "end-at"}
            assert code.options["language"] == "python"
            lines = code.lines()
            assert 0 < len(lines) <= LONGEST
            assert lines[0].startswith(" ") == ("dedent" in code.options)


def test_pages_include_code_from_the_package() -> None:
    assert all(text.count("```{literalinclude}") == len(INCLUDED.findall(text)) > 0 for text in PAGES.values())
    assert not any("```python" in text for text in PAGES.values())


def test_a_removed_definition_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("class A:\n    def f(self):\n        x = 1\n        return x\n")
    here = Included("page", file, {"pyobject": "A.f", "start-at": "x =", "end-at": "return"})
    assert here.lines() == ["        x = 1", "        return x"]
    for change in ({"pyobject": "A.g"}, {"start-at": "y ="}, {"end-at": "yield"}):
        with pytest.raises((ValueError, AssertionError)):
            here._replace(options={**here.options, **change}).lines()


@pytest.mark.parametrize("page", PAGES)
def test_parameter_count_equals_summary(page: str) -> None:
    shown = dict(COUNT.findall(PAGES[page]))
    counted = {name: f"{sum(parameter.numel() for parameter in preset_model(name).parameters()):,}" for name in shown}
    assert counted == shown


def test_commands_on_pages_parse(subtests: pytest.Subtests) -> None:
    for command in commands():
        with subtests.test(command):
            words = shlex.split(command, comments=True)
            assert cli._parse(words).name == words[0]
            if words[0] == "train":  # settings, too
                given = from_arguments(word for word in words[2:] if re.match(r"[\w.]+=", word))
                apply(RECIPES[words[1]].config, given)


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if SETTING.search(text)])
def test_model_settings_are_recipe_settings(page: str) -> None:
    name, _ = COUNT.findall(PAGES[page])[0]
    for key, value in SETTING.findall(PAGES[page]):
        given = yaml.safe_load(f"[{value}]" if "," in value else value) if value else getattr(preset(name), key)
        preset(name, **{key: tuple(given) if isinstance(given, list) else given})


def test_every_page_is_complete() -> None:
    parts = ["Run it", "Equations and code", "Look inside", "What differs from", "Exact counts", "Measured here"]
    for page, text in PAGES.items():
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert len(headings) == len(parts), page
        assert all(heading.startswith(part) for heading, part in zip(headings, parts, strict=True)), page
        assert "$$" in text, page
        assert {"../how-to/read-a-map.md", "../explanation/errata.md"} <= set(re.findall(r"\]\(([^)#]+)", text)), page


def test_a_page_is_readable_in_five_minutes() -> None:
    for page, text in PAGES.items():
        prose = re.sub(r"^(```.*?^```|<!--.*?-->|\|.*?|Processors: .*?)$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert len(prose.split()) < WORDS, page


def test_every_model_has_a_page() -> None:
    shown = {code.file.resolve() for code in included()}
    models = ROOT / "manyheads" / "models"
    assert {models / f"{family.module}.py" for family in FAMILIES.values()} <= shown
    counted = {family_of(name) for text in PAGES.values() for name, _ in COUNT.findall(text)}
    assert counted == set(FAMILIES) - {"bert-features", "directions"}  # those without presets


def test_links_resolve_and_the_index_lists_all_pages() -> None:
    for text in (INDEX, *PAGES.values()):
        links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
        assert [link for link in links if not (FOLDER / link.partition("#")[0]).is_file()] == []
    listed = re.findall(r"^\| \[.+?\]\((.+?)\.md\)", INDEX, re.MULTILINE)
    contents = re.findall(r"^[a-z0-9-]+$", INDEX.split("{toctree}")[1], re.MULTILINE)
    assert listed == contents
    assert sorted(listed) == sorted(PAGES)


def test_a_baseline_is_shown_if_trained_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(recipe: str, seed: int = 1, **overrides: object) -> dict[str, object]:
        return {
            "recipe": recipe, "overrides": {"training.seed": seed, **overrides}, "data": {}, "parameters": 1,
            "seed": seed,
            "metrics": {"accuracy": {"value": 0.5}}, "wall_seconds": 60.0, "hardware": {"cpu": "CPU", "threads": 1},
        }  # fmt: skip

    alike, unlike = record("net", 2, **{"items": 10, "model.width": 8}), record("net", 1, items=20)
    monkeypatch.setattr(results_table, "records", lambda: [record("ours", items=10), alike, unlike, record("other")])
    rows = results_table.table("ours", rivals=["net"]).splitlines()[2:4]
    assert [row.split(" | ")[::5] for row in rows] == [["| `ours`"], ["| `net`"]]
    assert [row.split(" | ")[-1] for row in rows] == ["items=10 |", "items=10, model.width=8 |"]
    assert len(results_table.table("ours").splitlines()) == 5


def test_published_heads_are_printed_next_to_measured_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    head = {"layer": 7, "head": 9, "accuracy": 0.75, "base": 0.25}
    probe = {
        "model": "Mine", "treebank": "UD English X, dev", "published_relations": [{"group": "dobj", **head}],
        "coreference": [{"group": "pronoun", **head, "layer": 0}],
    }  # fmt: skip
    without = {**probe, "model": "Its", "coreference": None}
    monkeypatch.setattr(results_table, "records", lambda kind: [probe, without] if kind == "probes" else [])
    table = results_table.published_table().splitlines()
    assert table[0] == "| relation | BERT-base | Mine, English X, dev | Its, English X, dev |"
    assert "| `dobj` | 8-10: 0.868 (0.400) | 8-10: 0.750 (0.250) | 8-10: 0.750 (0.250) |" in table
    assert "| `det` | 8-11: 0.943 (0.517) |  |  |" in table
    assert "| antecedents, pronoun | 5-4: 0.640 | 1-10: 0.750 (0.250) |  |" in table


def test_every_page_has_its_measurements() -> None:
    assert {*PAPERS, "ablations", "biases", "capacity", "heads", "rivals"} == set(PAGES)
    assert {recipe for recipes in PAPERS.values() for recipe in recipes} <= {
        *RECIPES,
        *(r["recipe"] for r in records()),
    }
