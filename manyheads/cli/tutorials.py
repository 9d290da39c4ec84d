"""The command `manyheads tutorials`: copy the tutorials as notebooks, with all files that they import or read."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import unicodedata
from pathlib import Path

from manyheads.cli.parser import Flag, Positional, Verbs
from manyheads.errors import UserError, shown
from manyheads.files import regular, write

PACKAGE = Path(__file__).resolve().parents[1]
WHEEL = PACKAGE / "tutorials"  # an installed package contains the files; a clone has them next to the package
FILES = ("*.ipynb", "pictures/*.png", "kept_results.*", "*.conllu", "exercises/*.py")
SCRIPTS = ("**/*.py", "**/*.json")
NOTEBOOK_LINK = re.compile(r"\]\(([\w-]+\.ipynb)?#([^)\s]+)\)")  # to a heading
PAGE_LINK = re.compile(r"\[([^\[\]]*)\]\([\w./-]+\.md(?:#[^)\s]*)?\)")  # in the JSON text of a notebook


def add(verbs: Verbs) -> None:
    verbs.add(
        "tutorials", _tutorials, "copy the tutorials as notebooks",
        Positional("DIR", "a folder for the notebooks, their exercises, kept results and scripts"),
        Flag("--force", "replace files that differ, such as notebooks that were edited or executed"),
        example="manyheads tutorials course",
    )  # fmt: skip


def _tutorials(options: argparse.Namespace) -> None:
    if not options.dir:
        raise UserError("expected a folder for the tutorials, found an empty name")
    folder = Path(options.dir)
    files = tutorial_files()
    copy_tutorials(folder, files, force=options.force)
    print(f"{folder}: {sum(name.suffix == '.ipynb' for name in files)} notebooks, {len(files)} files in all")
    print(f"to open them: pip install 'manyheads[notebooks]', then jupyter lab {shlex.quote(options.dir)}")


def tutorial_files() -> dict[Path, bytes]:
    """Return the content of the tutorials' files by their path in the copy.

    The documentation is not copied, so the text of a link to one of its pages remains without the link. Links to
    headings get the anchors of Jupyter.

    Raises UserError if the package was installed without them.
    """
    clone = PACKAGE.parent
    pages, scripts = (WHEEL, WHEEL / "papers") if WHEEL.is_dir() else (clone / "docs" / "tutorials", clone / "papers")
    found = {path.relative_to(pages): path for pattern in FILES for path in sorted(pages.glob(pattern))}
    if not found:
        raise UserError(f"{WHEEL}: no such folder: this installation lacks the tutorials; install the wheel")
    for pattern in SCRIPTS:
        found |= {Path("papers", path.relative_to(scripts)): path for path in sorted(scripts.glob(pattern))}
    contents = {name: path.read_bytes() for name, path in found.items()}
    notebooks = {name: contents[name].decode() for name in contents if name.suffix == ".ipynb"}
    anchors = {name.name: _anchors(text) for name, text in notebooks.items()}
    return contents | {name: _with_links(text, name.name, anchors).encode() for name, text in notebooks.items()}


def _with_links(text: str, name: str, anchors: dict[str, dict[str, str]]) -> str:
    def moved(link: re.Match[str]) -> str:
        other, anchor = link.groups()
        return f"]({other or ''}#{anchors[other or name].get(anchor, anchor)})"

    return NOTEBOOK_LINK.sub(moved, PAGE_LINK.sub(r"\1", text))


def _anchors(notebook: str) -> dict[str, str]:
    """Return Jupyter's anchors of a notebook's headings by those of the documentation."""
    cells = [cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "markdown"]
    headings = re.findall(r"^#+ (.+)$", "\n".join("".join(cell["source"]) for cell in cells), re.MULTILINE)
    return {site_anchor(heading): heading.replace("`", "").replace(" ", "-") for heading in headings}


def site_anchor(heading: str) -> str:
    """Return the anchor of a heading in the documentation: its letters and digits in lower case, with hyphens."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-").lstrip("0123456789-")


def copy_tutorials(folder: Path, files: dict[Path, bytes], *, force: bool = False) -> None:
    """Write files to a folder. Identical files are not touched.

    Raises UserError, and writes nothing, if a file with other content exists and `force` is False, or if the files
    cannot be written.
    """
    for place in {folder / parent for name in files for parent in name.parents}:
        if place.exists() and not place.is_dir():
            raise UserError(f"{place}: expected a folder, found a file")
        if place.exists() and not os.access(place, os.W_OK):
            raise UserError(f"{place}: expected a folder in which you may write")
    existing = {name for name in files if regular(folder / name).exists()}
    new = [name for name in files if name not in existing or (folder / name).read_bytes() != files[name]]
    if (differing := [name for name in new if name in existing]) and not force:
        raise UserError(f"{folder}: found files that differ from the tutorials: {shown(differing)}; wrote nothing. "
                        "Choose a new folder, or replace the files with --force")  # fmt: skip
    for name in new:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, files[name])
