"""Reader of labeled texts in folders: one folder per class, with one .txt file per text in it or in its subfolders.

    ROOT/train/CLASS/*.txt  training data; the same for val and test (`roles.py`), as in the archive of IMDB reviews
    ROOT/CLASS/*.txt        all texts are training data

Hidden files and folders are ignored. Files without a label are left out and counted: files that are not .txt, texts
outside the class folders, and the folder `unsup`, which contains the unlabeled reviews of IMDB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from manyheads.data.readers.compressed import open_decompressed
from manyheads.data.readers.roles import class_folders_in, folders_in, is_hidden, split_folders, splits_among, visible
from manyheads.data.readers.rows import Row, character_fault
from manyheads.data.readers.splits import LONGEST, UTF8, Splits, lone_surrogate
from manyheads.errors import UserError

UNLABELED = "unsup"
_UTF8_BYTES = 4  # maximum number of bytes of a character in UTF-8


def class_folder_splits(folder: Path) -> Splits:
    """Return the training, validation and test folders of a directory of labeled texts.

    If the directory contains class folders directly, all its texts are training data.
    """
    folders = folders_in(folder)
    if named := split_folders(folders):
        found = splits_among(folder, [path.name for path in named])
        return found.mapped(lambda path: str(class_folders_in(Path(path))))
    holds_texts = any(_is_text(path) for path in folders for path in path.iterdir())
    return Splits(str(folder) if holds_texts else None, None, [])


def text_files(folder: Path, skips: Counter[str]) -> Iterator[Row[tuple[str, str]]]:
    """Yield one row for each text file in the class folders, sorted by name.

    The cells of a row are the text and the name of the class folder, which is the label.

    skips  counter of files without a label, which this function increments
    """
    folders = folders_in(folder)
    if not folders:
        raise UserError(f"{folder}: found no class folders; expected {folder}/CLASS/*.txt")
    if outside_count := sum(_is_text(path) for path in visible(folder)):
        skips[f"{folder}: texts outside of class folders"] += outside_count
    for path in folders:
        files = _files_below(path)
        texts = [file for file in files if _is_text(file)]
        if path.name == UNLABELED:
            skips[f"{path}: texts without a label"] += len(texts)
            continue
        if others := len(files) - len(texts):
            skips[f"{path}: files that are not .txt"] += others
        named = f"class folder {path.name!r}"
        if lone_surrogate(path.name):
            yield Row(folder, 1, ("", ""), "the folder name is not UTF-8", "rename it", named)
        elif not texts:
            yield Row(folder, 1, ("", ""), "contains no .txt file", "add texts, or remove the folder", named)
        else:
            yield from (_read(file, path.name) for file in texts)


def _read(file: Path, label: str) -> Row[tuple[str, str]]:
    if not file.is_file():
        return _fault(file, "a broken link" if file.is_symlink() else "not a regular file", "remove it")
    with open_decompressed(file) as content:
        data = content.read(_UTF8_BYTES * LONGEST + 1).removeprefix(b"\xef\xbb\xbf")
    if len(data) > _UTF8_BYTES * LONGEST:
        return _fault(file, f"the text is longer than {LONGEST:,} characters", "split it into several files")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Row(file, data.count(b"\n", 0, error.start) + 1, ("", label), *UTF8)
    if not text.strip():
        return _fault(file, "the text is blank", "add text to the file, or remove it")
    return Row(file, 1, (text, label), *(character_fault(text, "the text") or ()))


def _fault(path: Path, fault: str, hint: str) -> Row[tuple[str, str]]:
    return Row(path, 1, ("", ""), fault, hint)


def _is_text(path: Path) -> bool:
    return path.suffix.lower() == ".txt" and not path.is_dir()


def _files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, without hidden ones. Links to folders are not followed."""
    below = (path for path in sorted(folder.rglob("*")) if not path.is_dir())
    return [path for path in below if not any(map(is_hidden, path.relative_to(folder).parts))]
