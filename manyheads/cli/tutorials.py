"""The command `manyheads tutorials`: copy the tutorials as notebooks, with all files that they import or read."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from manyheads.cli.parser import Flag, Positional, Verbs
from manyheads.errors import UserError, shown
from manyheads.files import regular, write

PACKAGE = Path(__file__).resolve().parents[1]
WHEEL = PACKAGE / "tutorials"  # an installed package contains the files; a clone has them next to the package
FILES = ("*.ipynb", "kept_results.*", "*.conllu", "exercises/*.py")
SCRIPTS = ("**/*.py", "**/*.json")
PAGE_LINK = re.compile(r"\[([^\[\]]*)\]\([\w./-]+\.md(?:#[^)\s]*)?\)")  # in the JSON text of a notebook


def add(verbs: Verbs) -> None:
    verbs.add(
        "tutorials", _tutorials, "copy the tutorials as notebooks",
        Positional("DIR", "a folder for the notebooks, their exercises, kept results and scripts"),
        Flag("--force", "replace files that differ, such as notebooks that were edited or executed"),
        example="manyheads tutorials course",
    )  # fmt: skip


def _tutorials(options: argparse.Namespace) -> None:
    folder = Path(options.dir)
    files = tutorial_files()
    copy_tutorials(folder, files, force=options.force)
    print(f"{folder}: {sum(name.suffix == '.ipynb' for name in files)} notebooks, {len(files)} files in all")
    print(f"to open them: pip install 'manyheads[notebooks]', then jupyter lab {shlex.quote(options.dir)}")


def tutorial_files() -> dict[Path, bytes]:
    """Return the content of the tutorials' files by their path in the copy.

    The documentation is not copied, so the text of a link to one of its pages remains without the link.

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
    for name in (name for name in contents if name.suffix == ".ipynb"):
        contents[name] = PAGE_LINK.sub(r"\1", contents[name].decode()).encode()
    return contents


def copy_tutorials(folder: Path, files: dict[Path, bytes], *, force: bool = False) -> None:
    """Write files to a folder. Identical files are not touched.

    Raises UserError, and writes nothing, if a file with other content exists and `force` is False.
    """
    existing = {name for name in files if regular(folder / name).exists()}
    new = [name for name in files if name not in existing or (folder / name).read_bytes() != files[name]]
    if (differing := [name for name in new if name in existing]) and not force:
        raise UserError(f"{folder}: found files that differ from the tutorials: {shown(differing)}; wrote nothing. "
                        "Choose a new folder, or replace the files with --force")  # fmt: skip
    for name in new:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, files[name])
