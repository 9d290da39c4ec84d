"""Examples of docs/extending: a copy of the project with all of them added passes its tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.paths import ROOT

FOLDER = ROOT / "docs" / "extending"
BLOCK = re.compile(r"^(`{3,4})(\w*)(?: file=(\S+))?\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
TABLE_ROW = re.compile(r"^\| `(\S+?)` \| (.+) \|$", re.MULTILINE)
COPIED = ("manyheads", "papers", "tests", "docs", "lab", "benchmarks", "scripts", "deploy")
# Tests of the rules, tables and pages that the examples touch. The tests that the examples add run with them.
TESTS = (
    "tests/contracts/test_imports.py", "tests/contracts/docs/test_pages.py", "tests/contracts/docs/test_papers.py",
    "tests/contracts/docs/test_site.py", "tests/contracts/interop/test_fields.py",
    "tests/contracts/tasks/test_tables.py", "tests/contracts/test_cli.py::test_help_has_an_example_that_parses",
    "tests/contracts/test_cli.py::test_help_is_a_verb_and_lists_groups",
    "tests/contracts/results/test_table.py::test_pages_are_up_to_date",
    "tests/contracts/test_cli.py::test_recipes_list_every_family_and_every_recipe",
    "tests/unit/models/test_presets.py",
)  # fmt: skip
# The other models have no part in an example: `make test` runs their tests.
LEFT_OUT = "not (test_parameter_count and not (patch-pool or vit))"


class Example(NamedTuple):
    """Example of a page.

    files      contents of the new files
    changes    changes of existing files, in order
    table      names of all files, as listed at the top of the page
    """

    files: dict[str, str]
    changes: list[tuple[str, str]]
    commands: list[str]
    table: list[str]

    @property
    def touched(self) -> set[str]:
        """Return the names of the existing files that the example changes."""
        return {file for file, _ in self.changes}


def example(page: Path) -> Example:
    text = page.read_text(encoding="utf-8")
    blocks = [(kind, file, content) for _, kind, file, content in BLOCK.findall(text)]
    commands = [line for kind, _, content in blocks if not kind for line in content.splitlines() if line[:1] == "m"]
    files = {file: content for kind, file, content in blocks if file and kind != "diff"}
    changes = [(file, content) for kind, file, content in blocks if kind == "diff"]
    rows = TABLE_ROW.findall(text.split("\n## ")[0])
    return Example(files, changes, commands, [file for file, _ in rows])


EXAMPLES = {page.stem: example(page) for page in sorted(FOLDER.glob("[!i]*.md"))}


def changed(text: str, change: str) -> str:
    """Return the text with the change. Its lines that begin with a blank or with - are in the text exactly once."""
    lines = [line or " " for line in change.splitlines()]
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
    assert before.strip()
    assert text.count(before) == 1, f"{text.count(before)} times in the file:\n{before}"
    return text.replace(before, after)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all examples in it, and the inputs of their commands."""
    folder = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    for page in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(page, folder)
    for given in EXAMPLES.values():
        for file, text in given.files.items():
            assert not (folder / file).exists(), file
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
        for file, change in given.changes:
            (folder / file).write_text(changed((folder / file).read_text(encoding="utf-8"), change), encoding="utf-8")
    ran(folder, "-m", "lab.results_table")
    image = (np.random.default_rng(0).random((8, 8)) * 255).astype(np.uint8)
    Image.fromarray(image).save(folder / "digit.png")
    months = ("January", "February", "March", "April", "May", "June", "July", "August")
    rows = [f"{a}\t{b}\t{int(i + 1 != j)}" for i, a in enumerate(months) for j, b in enumerate(months)]
    (folder / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]) + "\n")
    (folder / "text.txt").write_text(" ".join(months * 50) + "\n")
    return folder


def ran(folder: Path, *command: str, given: str = "") -> str:
    """Run a module of Python in the copy and return what it prints."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, input=given,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def python_files() -> list[str]:
    """The Python files that the examples add or change."""
    named = {file for given in EXAMPLES.values() for file in (*given.files, *(file for file, _ in given.changes))}
    return sorted(file for file in named if file.endswith(".py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_lists_its_files(name: str) -> None:
    given = EXAMPLES[name]
    assert sorted(given.table) == sorted({*given.files, *given.touched})
    assert len(given.table) == len(set(given.table))


def test_the_index_counts_the_files() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    counted = {name: (len(given.files), len(given.touched)) for name, given in EXAMPLES.items()}
    shown = re.findall(r"\((\S+)\.md\) \|.*?\| (?:(\d+) new, )?(\d+) changed \|", index)
    assert {name: (int(new or 0), int(touched)) for name, new, touched in shown} == counted


NO_NUMBA = "import sys; sys.modules['numba'] = None\n"  # its kernels would be compiled for the copy
COMMANDS = """
import contextlib, io, json
from manyheads import cli
printed = []
for command in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(command.split()[1:]) == 0, command
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def test_all_example_commands_run(copy: Path) -> None:
    """One process runs them all, because most of the time is its start."""
    commands = [command for given in EXAMPLES.values() for command in given.commands]
    printed = json.loads(ran(copy, "-c", NO_NUMBA + COMMANDS, given=json.dumps(commands)))
    assert len(commands) > 15
    found = dict(zip(commands, printed, strict=True))
    evaluated, trained = (
        [line.split()[:2] for line in found[command].splitlines()]
        for command in ("manyheads evaluate runs/pool", train(commands, "runs/pool"))
    )
    assert evaluated == trained[: len(evaluated)]  # the scores of the validation data follow
    assert "sentence_accuracy" in found["manyheads evaluate runs/tags"]
    assert 0 < float(found["manyheads follows runs/next March April"]) < 1
    assert found["manyheads generate runs/alibi March"].strip()
    assert Image.open(copy / "map.png").size > (100, 100)
    assert "March" in (copy / "page.html").read_text()


def train(commands: Sequence[str], out: str) -> str:
    (command,) = (one for one in commands if one.endswith(f"--out {out}") and one.startswith("manyheads train"))
    return command


def test_the_extended_copy_keeps_the_import_rules(copy: Path) -> None:
    own = [file for file in python_files() if file.startswith("tests/") and "/test_" in file]
    tests = NO_NUMBA + "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    ran(copy, "-c", tests, "-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, *TESTS, *own)


def test_the_extended_copy_passes_lint_and_format(copy: Path) -> None:
    ran(copy, "-m", "ruff", "check", "--no-cache", *python_files())
    ran(copy, "-m", "ruff", "format", "--check", "--no-cache", *python_files())


def test_the_extended_copy_passes_the_type_checker(copy: Path) -> None:
    """The cache is kept between runs: without it, mypy first reads PyTorch."""
    cache = ROOT / ".mypy_cache" / "examples"
    ran(copy, "-m", "mypy", "--cache-dir", str(cache), "--follow-imports=silent", *python_files())


@pytest.mark.slow
def test_the_extended_copy_passes_all_tests(copy: Path) -> None:
    """The diffs of the examples no longer apply to the copy, which contains them."""
    others = "not test_all_diffs_of_the_worked_examples_apply_together"
    ran(copy, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "-k", others, "tests/unit", "tests/contracts")
