"""The worked examples of docs/house.md: a copy of the package takes them up as they are written, and they work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
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
    """With the lines that begin with + behind the line before them, which the text has once."""
    *_, (before, added) = [("", "")] if not change else [split(change)]
    assert text.count(before) == 1, f"expected once: {before!r}"
    return text.replace(before, before + added)


def split(change: str) -> tuple[str, str]:
    lines = change.splitlines(keepends=True)
    kept = [line[1:] for line in lines if line.startswith(" ")]
    added = [line[1:] for line in lines if line.startswith("+")]
    assert len(kept) + len(added) == len(lines)
    assert lines[0].startswith(" "), "a change begins with the line that it stands behind"
    return "".join(kept), "".join(added)


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


def typed(command: str, folder: Path) -> str:
    """What a command prints, typed in a folder that has the package."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout
