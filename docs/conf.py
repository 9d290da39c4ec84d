"""The site: `make docs` builds it into build/docs/html, and what is read there asks no network for anything."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from lab.recipes_page import with_tables
from manyheads import __version__

project, author, copyright = "Manyheads", "Manyheads contributors", "Manyheads contributors"
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.viewcode", "sphinx_design"]
exclude_patterns = ["README.md", "tutorials/source"]
highlight_language = "none"
smartquotes_action = "qe"  # no dashes: "--" begins an option

nitpicky = True
# types of other libraries and of signatures: there is no index of them that could be read without a network
nitpick_ignore_regex = [("py:(class|data|obj|attr)", ".*")]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# `make notebooks` executes the tutorials (docs/tutorials/source); the site shows the committed outputs.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # plain CommonMark has no tables
nb_ipywidgets_js: dict[str, Any] = {}  # would come from elsewhere

html_theme = "furo"
html_title = "Manyheads"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
mathjax_path = "mathjax/tex-chtml.js"

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # PyTorch's own are written for its site
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 100


def add_tables(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the tables of recipes and settings to their pages."""
    source[0] = with_tables(page, source[0])


def docstring_as_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring from plain text with `code` to reStructuredText. Rows "name   meaning" become definitions."""
    parts: list[list[str]] = []  # prefix of a paragraph, then its lines
    for line in lines:
        row = re.fullmatch(r"(\S+(?: \S+)*) {2,}(\S.*)", line)
        example = line.startswith("    ") and (not parts or parts[-1][0] in ("", "::"))
        if not line.strip():
            parts.append([""])
        elif row:
            parts.append([f"``{row[1]}``", row[2]])
        elif example:
            parts.append(["::", line])
        elif parts and (parts[-1][0] in ("", "::") or line.startswith(" ")) and parts[-1][0] != "::":
            parts[-1].append(line.strip())
        else:
            parts.append(["", line])
    lines.clear()
    for before, *text in parts:
        indent = "    " if before else ""
        block = text if before == "::" else [indent + _escaped(" ".join(text))]
        lines += [before, *([""] if before == "::" else []), *block, *([] if before.startswith("``") else [""])]


def skipped(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Skip the fields of a named tuple, which its docstring describes."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field number") else None


def _escaped(text: str) -> str:
    """Escape all markup except `code`."""
    parts = re.split(r"`([^`]+)`", text)
    parts[::2] = [re.sub(r"([\\*_|`])", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"``{part}``" for part in parts[1::2]]
    return "".join(parts)


def notebook_link(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Add a link to the notebook below the title of its page."""
    if _notebook(app, page).exists():
        name = _notebook(app, page).name
        link = f'<p class="notebook">This page as a notebook: <a href="{name}" download>{name}</a></p>'
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def copy_files(app: Sphinx, error: Exception | None) -> None:
    """Copy the notebooks and MathJax to the places that the pages link to."""
    if error is None:
        for page in app.env.found_docs:
            if _notebook(app, page).exists():
                shutil.copy(_notebook(app, page), app.outdir / f"{page}.ipynb")
        mathjax = Path(import_module("sphinx-mathjax-offline").__path__[0], "static", "mathjax")
        to = app.outdir / "_static" / "mathjax"
        fonts = Path("output", "chtml", "fonts", "woff-v2")
        shutil.copytree(mathjax / fonts, to / fonts, dirs_exist_ok=True)
        shutil.copy(mathjax / "tex-chtml.js", to)


def _notebook(app: Sphinx, page: str) -> Path:
    return Path(app.srcdir, f"{page}.ipynb")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_tables)
    app.connect("autodoc-process-docstring", docstring_as_rst)
    app.connect("autodoc-skip-member", skipped)
    app.connect("html-page-context", notebook_link)
    app.connect("build-finished", copy_files)
