"""Texts as folders of files: a folder for each class, and a .txt file for each text in it or in folders below it.

    ROOT/train/CLASS/*.txt, and val and test likewise (`roles.py`), as IMDB's reviews are unpacked;
    ROOT/CLASS/*.txt, of which all is for training

What is hidden is passed over. What cannot have a label is left out and counted: other files, texts beside the folders,
and the folder `unsup`, in which IMDB's authors put reviews without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from manyheads.data.readers.roles import folders_in, split_folders, splits_among, visible, within
from manyheads.data.readers.rows import Row, character_fault
from manyheads.data.readers.splits import LONGEST, UTF8, Splits, half_character
from manyheads.errors import UserError

UNLABELLED = "unsup"
_UTF8_BYTES = 4  # of a character, at most


def class_folder_splits(folder: Path) -> Splits:
    """The splits of a directory, or the directory itself where it holds class folders; else nothing."""
    folders = folders_in(folder)
    if named := split_folders(folders):
        found = splits_among(folder, [path.name for path in named])
        return found.mapped(lambda path: str(within(Path(path))))
    holds_texts = any(_is_text(path) for path in folders for path in path.iterdir())
    return Splits(str(folder) if holds_texts else None, None, [])


def text_files(folder: Path, skips: Counter[str], limit: int | None = None) -> Iterator[Row[tuple[str, str]]]:
    """A row for each file, in the order of their names: its text, and the name of its class folder.

    skips  counts what has no label
    limit  of some texts only: about so many, of each class alike
    """
    folders = folders_in(folder)
    if not folders:
        raise UserError(f"{folder}: no class folders in it; expected {folder}/CLASS/*.txt")
    share = None if limit is None else -(-limit // len(folders))
    if beside := sum(_is_text(path) for path in visible(folder)):
        skips[f"{folder}: texts beside the class folders"] += beside
    for path in folders:
        files = _below(path)
        texts = [file for file in files if _is_text(file)]
        if path.name == UNLABELLED:
            skips[f"{path}: texts without a label"] += len(texts)
            continue
        if others := len(files) - len(texts):
            skips[f"{path}: files that are not .txt"] += others
        named = f"class folder {path.name!r}"
        if half_character(path.name):
            yield Row(folder, 1, ("", ""), "its name is not UTF-8", "rename it", named)
        elif not texts:
            yield Row(folder, 1, ("", ""), "no .txt file in it", "put texts into it, or remove it", named)
        else:
            yield from (_read(file, path.name) for file in texts[:share])


def _read(file: Path, label: str) -> Row[tuple[str, str]]:
    if not file.is_file():
        return _fault(file, "a broken link" if file.is_symlink() else "no regular file", "remove it")
    with file.open("rb") as content:
        data = content.read(_UTF8_BYTES * LONGEST + 1).removeprefix(b"\xef\xbb\xbf")
    if len(data) > _UTF8_BYTES * LONGEST:
        return _fault(file, f"the text is longer than {LONGEST:,} characters", "cut it into several")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Row(file, data.count(b"\n", 0, error.start) + 1, ("", label), *UTF8)
    if not text.strip():
        return _fault(file, "the text is blank", "write one, or remove the file")
    return Row(file, 1, (text, label), *(character_fault(text, "the text") or ()))


def _fault(path: Path, fault: str, hint: str) -> Row[tuple[str, str]]:
    return Row(path, 1, ("", ""), fault, hint)


def _is_text(path: Path) -> bool:
    return path.suffix.lower() == ".txt" and not path.is_dir()


def _below(folder: Path) -> list[Path]:
    """The files in a folder and in those below it; links to folders are not followed."""
    below = (path for path in sorted(folder.rglob("*")) if not path.is_dir())
    return [path for path in below if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
