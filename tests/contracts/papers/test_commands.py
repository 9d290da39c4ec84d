"""The commands of papers on the pages exist, with their options; every folder has a command, a page and a test."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from lab.concordance_page import read_items
from manyheads import cli
from manyheads.runs.overrides import apply, from_arguments
from papers.command import run
from papers.recipes import RECIPES
from papers.universal.__main__ import main as universal
from tests.paths import ROOT

FOLDERS = sorted(path.parent for path in (ROOT / "papers").glob("*/__init__.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^!?python -m papers\.([a-z_]+)((?: [^\n#|]+)?)", re.MULTILINE)


def commands() -> list[tuple[str, tuple[str, ...]]]:
    """Return the name and the words of each command on the pages."""
    listed = (item.command for _, items in read_items().values() for item in items)
    texts = (*(page.read_text(encoding="utf-8") for page in PAGES), *listed)
    found = [match for text in texts for match in COMMAND.findall(text)]
    return sorted({(name, tuple(words.split())) for name, words in found})


@pytest.mark.parametrize(("name", "words"), commands(), ids=lambda part: part if isinstance(part, str) else "")
def test_a_command_of_a_page_exists_with_its_options(
    name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main = import_module(f"papers.{name}.__main__").main
    subcommand = [word for word in words[:1] if re.fullmatch("[a-z-]+", word) and word != "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*subcommand, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word not in text] == []
    if words and words[0] in RECIPES:
        apply(RECIPES[words[0]].config, from_arguments(word for word in words if re.match(r"[\w.]+=", word)))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_has_a_command_a_page_and_a_test(folder: Path) -> None:
    assert (folder / "__main__.py").is_file()
    assert folder.name in {name for name, _ in commands()}
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert f"papers.{folder.name}." in tests


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_dry_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = RECIPES[name]
    module = recipe.program.removeprefix("python -m ")
    assert run(import_module(f"{module}.__main__").main, [name, "--dry-run"]) == 0
    assert "parameters: " in capsys.readouterr().out


def test_a_stopped_run_names_its_command_and_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "copy"
    words = ["universal/copy", "size=60", "longest=4", "lengths=[4]", "tested=2", "steps=2", "warmup=1"]
    assert run(universal, [*words, "--out", str(out), "--max-minutes", "1e-9"]) == 0
    command = f"python -m papers.universal --resume {out}"
    assert f"resume with: {command}" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(out)]) == 2
    assert f"resume this run with: {command}" in capsys.readouterr().err
    assert run(universal, ["--resume", str(out)]) == 0
    assert json.loads((out / "result.json").read_text())["steps"] == 2


def test_a_command_names_its_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([], "expected a recipe: universal/copy"),
        (["translation"], "unknown recipe 'translation': expected one of universal/copy"),
        (["copy"], "did you mean universal/copy?"),
        (["universal/copy", "--ouT", "x"], "unrecognized arguments: --ouT"),
    ):
        assert run(universal, words) == 2
        assert message in capsys.readouterr().err


def test_the_package_imports_nothing_from_papers() -> None:
    files = (ROOT / "manyheads").rglob("*.py")
    assert [
        file for file in files if re.search(r"^\s*(?:from|import) papers\b", file.read_text("utf-8"), re.MULTILINE)
    ] == []
