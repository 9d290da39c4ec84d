"""The commands of papers on the pages exist, with their options; every folder has a command, a page and a test."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.paths import ROOT

FOLDERS = sorted(path.parent for path in (ROOT / "papers").glob("*/__init__.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^!?python -m papers\.([a-z_]+)((?: [^\n#|]+)?)", re.MULTILINE)


def commands() -> list[tuple[str, tuple[str, ...]]]:
    """Return the name and the words of each command on the pages."""
    found = [match for page in PAGES for match in COMMAND.findall(page.read_text(encoding="utf-8"))]
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


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_has_a_command_a_page_and_a_test(folder: Path) -> None:
    assert (folder / "__main__.py").is_file()
    assert folder.name in {name for name, _ in commands()}
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert f"papers.{folder.name}." in tests


def test_the_package_imports_nothing_from_papers() -> None:
    files = (ROOT / "manyheads").rglob("*.py")
    assert [
        file for file in files if re.search(r"^\s*(?:from|import) papers\b", file.read_text("utf-8"), re.MULTILINE)
    ] == []
