"""`manyheads tutorials` copies the notebooks with their files, and never replaces a changed file silently."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from manyheads import cli
from manyheads.cli import tutorials
from tests.paths import ROOT
from tests.support.refusals import refused


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def jupyter_anchors(cells: list[dict[str, Any]]) -> set[str]:
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return {heading.replace("`", "").replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}


def test_notebooks_exercises_results_and_scripts_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a course"
    assert cli.main(["tutorials", str(folder)]) == 0
    pages = ROOT / "docs" / "tutorials"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in pages.glob("*.ipynb")} == {name for name in names if name.endswith(".ipynb")}
    expected = {"kept_results.py", "kept_results.json", "small.conllu", "papers/reach/influence.py"}
    assert expected | {f"exercises/{path.name}" for path in pages.glob("exercises/*.py")} <= names
    assert not [name for name in names if name.endswith((".md", ".pyc"))]
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{folder}: {len(list(pages.glob('*.ipynb')))} notebooks, {len(names)} files in all"
    assert second == f"to open them: pip install 'manyheads[notebooks]', then jupyter lab '{folder}'"


def test_links_to_pages_become_text_and_outputs_stay(tmp_path: Path) -> None:
    tutorials.copy_tutorials(tmp_path, tutorials.tutorial_files())
    for copy in tmp_path.glob("*.ipynb"):
        cells = json.loads(copy.read_text(encoding="utf-8"))["cells"]
        original = json.loads((ROOT / "docs" / "tutorials" / copy.name).read_text(encoding="utf-8"))["cells"]
        for cell, old in zip(cells, original, strict=True):
            assert cell.get("outputs") == old.get("outputs")
            text = "".join(cell["source"])
            for target in re.findall(r"\]\(([^)\s]+)\)", text) if cell["cell_type"] == "markdown" else []:
                name = target.partition("#")[0]
                assert not name or name.startswith("http") or (tmp_path / name).exists(), f"{copy.name}: {target}"
            if cell["cell_type"] == "code":
                assert text == "".join(old["source"])
            for anchor in re.findall(r"\]\(#([^)\s]*\)?)\)", text) if cell["cell_type"] == "markdown" else []:
                assert anchor in jupyter_anchors(cells), f"{copy.name}: {anchor}"
    assert tutorials.PAGE_LINK.sub(r"\1", "[a](../b/c.md#d-e) [f](g.ipynb) x[0](y)") == "a [f](g.ipynb) x[0](y)"


def test_changed_files_are_replaced_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tutorials", str(tmp_path)]) == 0
    before, notebook, absent = contents(tmp_path), tmp_path / "blog.ipynb", tmp_path / "small.conllu"
    written = notebook.stat().st_mtime_ns
    assert cli.main(["tutorials", str(tmp_path)]) == 0
    assert notebook.stat().st_mtime_ns == written  # identical files are not touched
    notebook.write_text("mine")
    absent.unlink()
    capsys.readouterr()
    message = refused(capsys, "tutorials", str(tmp_path))
    assert "found files that differ from the tutorials: blog.ipynb; wrote nothing" in message
    assert "--force" in message
    assert notebook.read_text() == "mine"
    assert not absent.exists()
    assert cli.main(["tutorials", str(tmp_path), "--force"]) == 0
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert f"{file}: expected a folder, found a file" in refused(capsys, "tutorials", str(file))
    assert "found an empty name" in refused(capsys, "tutorials", "")
    (tmp_path / "partly").mkdir()
    (tmp_path / "partly" / "exercises").write_text("")
    assert "exercises: expected a folder, found a file" in refused(capsys, "tutorials", str(tmp_path / "partly"))
    assert [path.name for path in (tmp_path / "partly").iterdir()] == ["exercises"]
    (tmp_path / "circle").symlink_to("circle")
    refused(capsys, "tutorials", str(tmp_path / "circle"))
    (tmp_path / "new" / "blog.ipynb").mkdir(parents=True)
    assert "blog.ipynb: expected a file, found a directory" in refused(capsys, "tutorials", str(tmp_path / "new"))


def test_an_installation_without_the_files_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tutorials, "PACKAGE", tmp_path / "site-packages" / "manyheads")
    assert "this installation lacks the tutorials" in refused(capsys, "tutorials", str(tmp_path / "course"))
