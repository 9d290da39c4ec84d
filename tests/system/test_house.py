"""The worked examples of docs/house.md: a copy of the package takes them up as they are written, and they work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.paths import ROOT

LAWS = "tests/contracts/test_imports.py"
PAGE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")


class Example(NamedTuple):
    """What a section of the page adds: whole files, lines in files that there are, and commands to type."""

    files: dict[str, str]
    changes: dict[str, list[str]]
    commands: list[str]


def example(title: str) -> Example:
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w*)(?: file=(\S+))?\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    changes: dict[str, list[str]] = {}
    for kind, file, text in blocks:
        if kind == "diff":
            changes.setdefault(file, []).append(text)
    commands = [line for kind, _, text in blocks if not kind for line in text.splitlines() if line[:1] == "m"]
    return Example({file: text for kind, file, text in blocks if kind == "python"}, changes, commands)


def changed(text: str, change: str) -> str:
    """With the lines that begin with + behind the line that stands before them, which the text has once."""
    lines = change.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line.startswith(" "))
    added = "".join(line[1:] for line in lines if line.startswith("+"))
    after = text[text.index(before) + len(before) :] if before in text else None
    assert after is not None, f"the file has no {before!r}"
    return text.removesuffix(after) + added + after


def taken_up(title: str, folder: Path) -> Example:
    """A copy of the package with the example in it."""
    shutil.copytree(ROOT / "manyheads", folder / "manyheads", ignore=shutil.ignore_patterns("__pycache__"))
    given = example(title)
    for file, text in given.files.items():
        assert not (folder / file).exists()
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    for file, changes in given.changes.items():
        for change in changes:
            (folder / file).write_text(changed((folder / file).read_text(encoding="utf-8"), change), encoding="utf-8")
    return given


TYPIST = """
import contextlib, io, json, sys
sys.modules["numba"] = None  # or its kernels are compiled anew for the copy
from manyheads import cli
printed = []
for command in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.main(command.split()[1:]) == 0, command
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def typed(commands: list[str], folder: Path) -> list[str]:
    """What each command prints in a folder that has the package; one process for all, as starting takes longest."""
    done = subprocess.run(
        [sys.executable, "-c", TYPIST], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
        input=json.dumps(commands), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: list[str] = json.loads(done.stdout)
    return printed


def test_a_new_model(tmp_path: Path) -> None:
    given = taken_up("A new model", tmp_path)
    assert len(given.changes) == 1, "files that a new model touches"
    image = (np.random.default_rng(0).random((8, 8)) * 255).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "digit.png")
    verbs = [command.split()[1] for command in given.commands]
    printed = dict(zip(verbs, typed(given.commands, tmp_path), strict=True))
    assert set(printed) == {"summary", "train", "evaluate", "classify", "attend"}
    assert printed["evaluate"] == printed["train"]
    assert Image.open(tmp_path / "map.png").size > (100, 100)


def test_a_new_task(tmp_path: Path) -> None:
    given = taken_up("A new task", tmp_path)
    assert {Path(file).parent.name for file in given.files} == {"next_sentence", "cli"}
    assert set(given.changes) == {
        "manyheads/tasks/registry.py", "manyheads/tasks/loading.py", "manyheads/cli/__init__.py",
    }  # fmt: skip
    months = ("January", "February", "March", "April", "May", "June", "July", "August")
    rows = [f"{a}\t{b}\t{int(i + 1 != j)}" for i, a in enumerate(months) for j, b in enumerate(months)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]) + "\n")
    printed = typed(given.commands, tmp_path)
    assert printed[2].startswith("accuracy")
    assert 0 < float(printed[3]) < 1
    assert "March" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("title", ["A new model", "A new task"])
def test_what_an_example_adds_obeys_the_laws(title: str, tmp_path: Path) -> None:
    taken_up(title, tmp_path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", LAWS, "-k", "point_down"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
