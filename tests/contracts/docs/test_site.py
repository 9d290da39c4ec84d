"""Checks of the documentation site that need no build, and the script that checks the built site."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from manyheads.models.presets import FAMILIES
from scripts.check_site import faults, main
from tests.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
NOTEBOOKS = [page for page in PAGES if page.read_text(encoding="utf-8").startswith("---\njupytext:")]


def prose(page: Path) -> str:
    """Return the page's text without fenced blocks and inline code."""
    return re.sub(r"`[^`]*`", "", "".join(page.read_text(encoding="utf-8").split("```")[::2]))


def test_links_lead_to_files_of_the_project() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
    paths = [(page, link.split("#")[0]) for page, link in links if not re.match(r"[a-z]+:", link)]
    assert [(str(page), path) for page, path in paths if path and not (page.parent / path).is_file()] == []


def test_every_page_is_in_a_table_of_contents() -> None:
    sources = DOCS / "tutorials" / "source"  # of the notebooks, which are pages
    expected = {page for page in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")] if page.parent != sources}
    found = {DOCS / "index.md"}
    for page in DOCS.rglob("*.md"):
        for tree in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for entry in (line for line in tree.splitlines() if line and not line.startswith(":")):
                files = [*page.parent.glob(f"{entry}.md"), *page.parent.glob(f"{entry}.ipynb")]
                pages = {file for file in files if file != page}
                assert pages, f"{page.name} names {entry}, which is not there"
                found |= pages
    assert found == expected


def test_every_model_file_is_in_reference_and_papers() -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    modules = re.findall(r"automodule:: (\S+)", reference)
    assert len(modules) == len(set(modules))
    assert {f"manyheads.models.{file.stem}" for file in (ROOT / "manyheads" / "models").glob("[!_]*.py")} <= {*modules}
    for module in modules:
        import_module(module)
    papers = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "papers").glob("*.md"))
    assert [family.module for family in FAMILIES.values() if f"models/{family.module}.py" not in papers] == []


def test_notebooks_contain_valid_python() -> None:
    assert NOTEBOOKS
    for page in NOTEBOOKS:
        text = page.read_text(encoding="utf-8")
        assert "\n  name: python3\n" in text, "the kernel of the environment that builds the site"
        cells = re.findall(r"^```{code-cell}[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert cells, page
        for cell in cells:
            if re.match(r"(:.*\n)*%%sh\n", cell):  # the whole cell is the shell's, and its failure the page's
                continue
            # options of the cell, magics, and commands, which a backslash continues on the next line
            code = re.sub(r"^(:.*|\s*[!%](.*\\\n)*.*)$", "", cell, flags=re.MULTILINE)
            compile(code, str(page), "exec")


def site(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    return folder


def test_a_freshly_built_site_has_no_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.css").write_text("@import 'more.css'; p { background: url(data:image/png;base64,AA) }")
    site(
        tmp_path, one='<link href="own.css"><a href="two.html#here">2</a><a href="https://example.org">other</a>',
        two='<p id="here"><a href="#here">here</a><a href="one.html">1</a><img src="data:image/png;base64,AA">',
    )  # fmt: skip
    assert faults(tmp_path) == []
    assert main([str(tmp_path)]) == 0
    assert "2 pages" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ('<script src="https://example.org/a.js"></script>', "loads https://example.org/a.js"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "loads //example.org/a.css"),
        ("<style>@import url('https://example.org/a.css')</style>", "loads https://example.org/a.css"),
        (
            '<iframe srcdoc="&lt;img src=&quot;https://example.org/a.png&quot;&gt;"></iframe>',
            "https://example.org/a.png",
        ),
        ('<a href="gone.html">gone</a>', "gone.html is not there"),
        ('<a href="page.html#gone">gone</a>', "page.html#gone names no place of page.html"),
        ('<img src="gone.png">', "gone.png is not there"),
        ("<p>| model | BLEU |\n| --- | --: |\n| a | 1 |</p>", "a table is not rendered: | --- |"),
    ],
)
def test_a_fault_is_reported_with_its_page(page: str, told: str, tmp_path: Path) -> None:
    (found,) = faults(site(tmp_path, page=page))
    assert found.startswith("page.html: ")
    assert found.endswith(told)
    assert main([str(tmp_path)]) == 1


def test_the_source_of_a_table_in_code_is_no_fault(tmp_path: Path) -> None:
    assert faults(site(tmp_path, page="<pre>| --- | --: |</pre><p>a | b, then <code>| --- |</code></p>")) == []


def test_a_link_that_promises_a_picture_leads_to_one() -> None:
    promise = re.compile(r"\[[^\]]*\]\(([^)#\s]+\.md)[^)]*\)(?:\s+\S+){0,3}\s+(?:the\s+arrows|pictures?)\b|"
                         r"\[[^\]]*\bpictures?\b[^\]]*\]\(([^)#\s]+\.md)[^)]*\)")  # fmt: skip
    promises = [(page, link) for page in PAGES for links in promise.findall(prose(page)) for link in links if link]
    assert len(promises) > 2
    assert [link for page, link in promises if "![" not in (page.parent / link).read_text(encoding="utf-8")] == []


def test_external_style_sheets_are_reported(tmp_path: Path) -> None:
    (tmp_path / "own.css").write_text("@font-face { src: url(https://example.org/a.woff2) }")
    assert faults(site(tmp_path, page="")) == ["own.css: loads https://example.org/a.woff2"]


def test_a_site_without_pages_is_refused(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
