"""The wheel contains all files of the package, and the project's files agree with each other."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import manyheads
from manyheads.cli.tutorials import tutorial_files
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the unpacked wheel."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    assert wheel.name == f"manyheads-{manyheads.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "unpacked")
    return out / "unpacked"


def run(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With the wheel before everything else on the path, an editable install of the source tree included."""
    return subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_wheel_works_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    where = run(installed, tmp_path, "-c", "import manyheads; print(manyheads.__file__)")
    assert Path(where.stdout.strip()) == installed / "manyheads" / "__init__.py"
    shown = run(installed, tmp_path, "-m", "manyheads", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "translate" in shown.stdout
    summary = run(installed, tmp_path, "-m", "manyheads", "summary", "transformer/base")
    assert summary.returncode == 0, summary.stderr
    assert "63,082,496" in summary.stdout
    recipes = run(installed, tmp_path, "-m", "manyheads", "recipes", "translation")
    assert "bleu_13a" in recipes.stdout, recipes.stderr  # reference data came along
    recipes = run(installed, tmp_path, "-m", "manyheads", "recipes", "--json")
    assert recipes.returncode == 0, recipes.stderr


def test_the_wheel_contains_every_file_of_the_package(installed: Path) -> None:
    def files(root: Path) -> set[str]:
        found = (f.relative_to(root) for f in (root / "manyheads").rglob("*") if f.is_file())
        return {str(f) for f in found if "__pycache__" not in f.parts}

    data = {str(Path("manyheads", "tutorials", name)) for name in tutorial_files()}
    assert files(installed) == files(ROOT) | data
    (metadata,) = installed.glob("*.dist-info/METADATA")
    assert "License-Expression: MIT" in metadata.read_text()
    (entry,) = installed.glob("*.dist-info/entry_points.txt")
    assert "manyheads = manyheads.__main__:main" in entry.read_text()


def test_the_wheel_copies_the_tutorials(installed: Path, tmp_path: Path) -> None:
    copied = run(installed, tmp_path, "-m", "manyheads", "tutorials", "course")
    assert copied.returncode == 0, copied.stderr
    found = {path.relative_to(tmp_path / "course"): path.read_bytes() for path in (tmp_path / "course").rglob("*.*")}
    assert found == tutorial_files()  # of the source tree
    for module in ("kept_results", "papers.model_sizes"):
        imported = run(installed, tmp_path / "course", "-c", f"import sys; sys.path.insert(0, ''); import {module}")
        assert imported.returncode == 0, imported.stderr


def pinned(file: str = "requirements.lock") -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in lines if not line.startswith("#")]
    assert all(pins), "every line of the lock file is NAME==VERSION"
    return {re.sub(r"[-_.]+", "-", pin[1]).lower(): pin[2] for pin in pins if pin}


def test_the_lock_file_pins_all_requirements() -> None:
    found = pinned()
    assert found["torch"] == "2.13.0"
    assert len(found) <= 45, "a user of `make demo` downloads these"
    for file in ("requirements-dev.lock", "requirements-docs.lock", "requirements-nodeps.lock"):
        more = pinned(file)
        assert not set(more) & set(found), "what two files need is pinned once"
        found |= more
    extras = [r for rs in PROJECT["optional-dependencies"].values() for r in rs if not r.startswith("manyheads")]
    for requirement in [*PROJECT["dependencies"], *extras]:
        name, least = requirement.split(">=")
        assert name.lower() in found, f"{name} is in no lock file"
        assert tuple(map(int, re.findall(r"\d+", found[name.lower()]))) >= tuple(map(int, least.split(".")))


def test_versions_and_extras_are_consistent() -> None:
    assert PROJECT["version"] == manyheads.__version__
    (all_of,) = PROJECT["optional-dependencies"]["all"]
    named = set(re.findall(r"[a-z]+", all_of)) - {"manyheads"}
    assert named == set(PROJECT["optional-dependencies"]) - {"all"}
