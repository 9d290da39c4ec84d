"""The committed notebooks of the tutorials equal their sources and can be read on a code host."""

import ast
import base64
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import tutorial_extract
from scripts import build_notebooks
from tests.paths import ROOT

PAGES = ROOT / "docs" / "tutorials"
SOURCES = sorted((PAGES / "source").glob("*.md"))
NOTEBOOKS = sorted(PAGES.glob("*.ipynb"))
PENDING: set[str] = set()  # of an earlier form
MAX_LINES = 30  # of the text below one cell
MAX_KEPT = 8  # lines of a table of kept results
MAX_READING = 15  # lines of a cell that reads kept results
MAX_COLUMNS = 100  # of code: the width of a page at 1,400 pixels
MAX_OUTPUT = 120  # characters in a line below a cell, which a page wraps
MAX_BYTES = 6_000_000  # of all notebooks


def each(paths: list[Path]) -> list[Any]:
    revised = [path for path in paths if path.stem not in PENDING]
    return [pytest.param(path, id=path.stem) for path in revised]


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


def pictures(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the outputs of a cell that are pictures or pages."""
    return [output for output in cell.get("outputs", []) if {"image/png", "text/html"} & {*output.get("data", {})}]


def texts(cell: dict[str, Any]) -> str:
    """Return the text that a reader sees below a cell."""
    shown = []
    for output in cell.get("outputs", []):
        if output not in pictures(cell):
            shown.append("".join(output.get("text", output.get("data", {}).get("text/plain", ""))))
    return "\n".join(shown).strip("\n")


def kept(code: str) -> dict[str, list[str]]:
    """Return the titles of the tables and of the numbers that a cell reads with `kept_results`, by function."""
    found: dict[str, list[str]] = {"table": [], "numbers": []}
    for call in ast.walk(parsed(code)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("kept_results."):
            found[ast.unparse(call.func).partition(".")[2]].append(ast.literal_eval(call.args[0]))
    return found


def parsed(code: str) -> ast.Module:
    """Return the syntax tree of a cell; commands and magics become `pass`."""
    return ast.parse(re.sub(r"^([ \t]*)[!%].*$", r"\1pass", code.replace("\\\n", " "), flags=re.MULTILINE))


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in cells(notebook) if cell["cell_type"] == "code"]


def test_every_source_has_its_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in SOURCES] == build_notebooks.names()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_notebook_has_the_cells_of_its_source(source: Path) -> None:
    committed = cells(PAGES / f"{source.stem}.ipynb")
    expected = build_notebooks.cells(source)
    message = f"{source.name} has changed since its notebook was built: run make notebooks"
    assert [(cell["id"], cell["cell_type"]) for cell in committed] == [
        (cell["id"], cell["cell_type"]) for cell in expected
    ], message
    for ours, theirs in zip(committed, expected, strict=True):
        assert "".join(ours["source"]) == theirs["source"], message
        assert ours["metadata"] == theirs["metadata"], message


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_have_no_errors_and_no_paths_of_a_machine(notebook: Path) -> None:
    for cell in cells(notebook):
        for output in cell.get("outputs", []):
            assert output["output_type"] in ("stream", "display_data"), f"{cell['id']}: {output['output_type']}"
        text = json.dumps([output.get("text", output.get("data")) for output in cell.get("outputs", [])])
        found = re.search(r"(?<![\w.:/])/(?:tmp|home|root|work|usr|Users)/|\bat 0x[0-9a-f]{6}|\\u001b|\\r", text)
        assert not found, f"{cell['id']}: {text[max(0, found.start() - 40) : found.end() + 40]}"


def test_notebooks_are_small_and_images_narrow() -> None:
    assert sum(path.stat().st_size for path in NOTEBOOKS) < MAX_BYTES
    images = 0
    for notebook in NOTEBOOKS:
        for cell in cells(notebook):
            for output in cell.get("outputs", []):
                if png := output.get("data", {}).get("image/png"):
                    width, height = struct.unpack(">II", base64.b64decode(png)[16:24])  # of the IHDR chunk
                    assert width <= build_notebooks.MAX_WIDTH, cell["id"]
                    assert height <= 2 * build_notebooks.MAX_WIDTH, cell["id"]
                    images += 1
    assert images > 10


@pytest.mark.parametrize("notebook", each(NOTEBOOKS))
def test_cells_print_little(notebook: Path) -> None:
    for cell in code_cells(notebook):
        lines = len(texts(cell).splitlines())
        limit = MAX_KEPT if kept("".join(cell["source"]))["table"] else MAX_LINES
        assert lines <= limit, f"{cell['id']} prints {lines} lines: {texts(cell)[:200]}"
        assert max(map(len, texts(cell).splitlines()), default=0) <= MAX_OUTPUT, cell["id"]


def test_kept_results_are_current() -> None:
    text = tutorial_extract.FILE.read_text(encoding="utf-8")
    assert text == tutorial_extract.written(tutorial_extract.extract()), "run `make results`"


def test_every_kept_result_is_shown() -> None:
    read: dict[str, set[str]] = {"tables": set(), "numbers": set()}
    for cell in (cell for notebook in NOTEBOOKS for cell in code_cells(notebook)):
        titles = kept("".join(cell["source"]))
        read["tables"].update(titles["table"])
        read["numbers"].update(titles["numbers"])
    assert read == {kind: set(entries) for kind, entries in tutorial_extract.extract().items()}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_printed_tables_are_current_and_cells_that_read_them_short(notebook: Path) -> None:
    tables = tutorial_extract.extract()["tables"]
    for cell in code_cells(notebook):
        code = "".join(cell["source"])
        titles = kept(code)
        if titles["table"] or titles["numbers"]:
            assert len(code.splitlines()) <= MAX_READING, cell["id"]
        for title in titles["table"]:
            shown = json.dumps([output.get("text", output.get("data")) for output in cell["outputs"]])
            rebuild = f"{cell['id']}: run make notebooks TUTORIALS={notebook.stem}"
            assert all(json.dumps(line.strip())[1:-1] in shown for line in tables[title]), rebuild


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_code_imports_what_a_copy_of_the_tutorials_has(source: Path) -> None:
    """The extra `notebooks` installs the libraries, and `manyheads tutorials` copies the rest."""
    (extra,) = re.findall(r"^notebooks = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text("utf-8"), re.S | re.M)
    installed = {name.replace("scikit-learn", "sklearn") for name in re.findall(r'"([\w-]+)>=', extra)}
    known = {"manyheads", "torch", "numpy", "PIL", "tokenizers", "IPython", "kept_results", "exercises", "papers"}
    known |= installed | {"keras"}  # the cells about Keras also run without it
    for cell in build_notebooks.cells(source):
        if cell["cell_type"] == "code":
            tree = parsed(cell["source"])
            names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
            names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            unknown = {name.partition(".")[0] for name in names} - known - sys.stdlib_module_names
            assert not unknown, f"{cell['id']}: {unknown}"


@pytest.mark.parametrize("source", each(SOURCES))
def test_headings_are_unique(source: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", source.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    assert [heading for heading in headings if headings.count(heading) > 1] == []
    assert all(heading.count("`") % 2 == 0 for heading in headings)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_prose_is_plain_markdown(source: Path) -> None:
    """A code host shows the directives and roles of MyST as they are typed."""
    for cell in build_notebooks.cells(source):
        if cell["cell_type"] == "markdown":
            found = re.search(r"^(?:`{3,}|:::+)\{|\{[a-z:-]+\}`|<!--", cell["source"], re.MULTILINE)
            assert not found, f"{cell['id']}: {found[0]}"


@pytest.mark.parametrize("source", each(SOURCES))
def test_commands_are_typed_as_in_a_terminal(source: Path) -> None:
    code = [cell["source"] for cell in build_notebooks.cells(source) if cell["cell_type"] == "code"]
    assert [
        cell for cell in code if re.search(r"\bmain\(\[|\bcli\.main\b|subprocess|get_ipython|%%(sh|bash)", cell)
    ] == []


@pytest.mark.parametrize("source", each(SOURCES))
def test_code_does_not_scroll_sideways(source: Path) -> None:
    code = re.findall(r"^```.*?^```", source.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert [line for cell in code for line in cell.splitlines() if len(line) > MAX_COLUMNS] == []


@pytest.mark.parametrize("source", each(SOURCES))
def test_scores_of_opened_runs_are_asserted(source: Path) -> None:
    """A page that trains models and opens them asserts a score of each."""
    text = source.read_text(encoding="utf-8")
    opened = re.findall(r"\bload\(\"runs/", text)
    assert len(opened) <= len(re.findall(r"^ *assert ", text, re.MULTILINE))


def test_links_move_from_the_source_to_the_notebook(tmp_path: Path) -> None:
    source = tmp_path / "docs" / "tutorials" / "source" / "one.md"
    source.parent.mkdir(parents=True)
    links = "[a](../../papers/vit.md#b) [c](two.md#d) [e](#f) [g](https://h.org) [i](../start.md)"
    code = "```{code-cell} python\n:tags: [hide-output]\n\nf(a)[b](c)\n```\n"
    source.write_text(f"---\nkernelspec:\n---\n# One\n\n{links}\n<!-- absent: record x/y -->\nIt ends.\n\n{code}")
    prose, cell = build_notebooks.cells(source)
    assert prose["source"] == (
        "# One\n\n[a](../papers/vit.md#b) [c](two.ipynb#d) [e](#f) [g](https://h.org) [i](start.md)\nIt ends."
    )
    assert cell["source"] == "f(a)[b](c)"
    assert cell["metadata"] == {"tags": ["hide-output"]}


def test_text_is_replaced_without_execution(tmp_path: Path) -> None:
    source, committed = tmp_path / "one.md", tmp_path / "one.ipynb"
    code = "```{code-cell} python\nprint(1)\nprint(2)\n```\n"
    source.write_text(f"Old.\n\n{code}")
    old = build_notebooks.cells(source)
    old[1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "1\n2\n"}]
    committed.write_text(build_notebooks.written(old))
    source.write_text(f"New.\n\n{code}")
    new = build_notebooks.with_text(source, committed)
    assert [cell["source"] for cell in new] == ["New.", "print(1)\nprint(2)"]
    assert new[1] == old[1]
    source.write_text(f"New.\n\n{code.replace('2', '3')}")
    with pytest.raises(RuntimeError, match="code has changed"):
        build_notebooks.with_text(source, committed)


def test_progress_and_paths_are_removed_from_outputs() -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["  1%\r", " 99%\rdone in /tmp/x/runs\n"]},
        {"output_type": "stream", "name": "stderr", "text": ["a warning\n"]},
        {"output_type": "stream", "name": "stdout", "text": ["\x1b[1mbold\x1b[0m\n"]},
    ]
    cell = {
        "cell_type": "code",
        "source": ["1"],
        "metadata": {"execution": 1},
        "outputs": outputs,
        "execution_count": 5,
    }
    found = build_notebooks.normalized(cell, "/tmp/x")
    assert found["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "done in runs\nbold\n"}]
    assert found["metadata"] == {}
    assert found["execution_count"] is None
