"""Roles of files and folders (training, validation or test data), derived from their names.

A word of the name determines the role, in upper or lower case, alone or between dots, dashes, underscores and blanks:
`Train.txt`, `wiki.valid.tokens`, `seg_test`, `dev-v1.1.json`, `test2013`, `train-00000-of-00003.parquet`. A name with
words for two roles, such as `train_test_labels.csv`, is ambiguous and has no role; reports list it as not used. Only
this module contains the words for the roles.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from manyheads.data.readers.splits import Splits, folder_of, parts_of
from manyheads.errors import UserError, shown

logger = logging.getLogger(__name__)

Role = Literal["train", "validation", "evaluation", "test"]

NUMBERED = re.compile(r"\d+")  # example: train-0.txt
PARTS = re.compile(r"-\d+-of-\d+")  # example: train-00000-of-00003.parquet
_WORDS: dict[str, Role] = {
    **dict.fromkeys(("train", "training", "trainset", "traindata", "trn"), "train"),
    # CoNLL-2003 names its training, validation and test files eng.train, eng.testa and eng.testb
    **dict.fromkeys(("val", "valid", "validate", "validation", "valset"), "validation"),
    **dict.fromkeys(("dev", "devset", "development", "testa"), "validation"),
    # These words mean validation data, unless the directory contains other validation data.
    **dict.fromkeys(("eval", "evaluation"), "evaluation"),
    **dict.fromkeys(("test", "testing", "testset", "testdata", "testb", "tst", "t10k"), "test"),
}  # fmt: skip
# words in the names of files that are not data, such as a readme
_NOT_DATA = {"readme", "notes", "changelog", "log", "config"}
# Names of folders that are probably splits. `train` is not among them, because it may be the class of trains.
_HELD_OUT_FOLDERS = {"val", "valid", "validation", "dev", "test", "testing"}
_UNLABELED_WORDS = {"unlabeled", "unlabelled", "unsup", "unsupervised"}
# In a folder that contains source code or documentation, a file named `train` or `test` is usually not a split.
SOURCE_SUFFIXES = (
    ".md", ".rst", ".html", ".py", ".ipynb", ".sh", ".r", ".js", ".ts", ".c", ".h", ".cpp", ".java", ".go", ".rs",
    ".yaml", ".yml", ".toml",
)  # fmt: skip
_SPLIT_LIKE = re.compile("train|valid|test", re.IGNORECASE)
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")


def role_of(name: str) -> Role | None:
    """Return the role (training, validation or test) that a file name states; None if it states no role or several."""
    words = _words(name)
    roles = {_WORDS[word] for word in words if word in _WORDS}
    if roles == {"validation", "evaluation"}:
        return "validation"
    return roles.pop() if len(roles) == 1 and not _NOT_DATA.intersection(words) else None


def is_unlabeled_name(name: str) -> bool:
    """Return True if a name states that the data have no labels, such as `unsupervised`."""
    return bool(_UNLABELED_WORDS.intersection(_words(name)))


def roles_of(names: Iterable[str]) -> dict[str, Role]:
    """Return the role of each name in a directory. Names without a role are left out."""
    names = list(names)
    roles = {name: role for name in names if (role := role_of(name)) is not None}
    for suffix in {Path(name).suffix.lower() for name in roles}.intersection(SOURCE_SUFFIXES):
        pages = [name for name in names if Path(name).suffix.lower() == suffix]
        if not all(name in roles and len(_words(Path(name).stem)) == 1 for name in pages):
            roles = {name: role for name, role in roles.items() if name not in pages}
    return roles


def splits_among(folder: Path, names: Iterable[str], *, shards: re.Pattern[str] | None = None) -> Splits:
    """Assign the corpora of a directory to the training, validation and test splits by their names.

    shards  regular expression, `NUMBERED` or `PARTS`, for the part of a name that differs between the files of one
            corpus. The names of these files are joined by commas

    Raises UserError if several corpora could be the training data, or the validation data.
    """
    roles = roles_of(sorted(names))
    train, validation, evaluation, tests = (
        _corpora([name for name, its_role in roles.items() if its_role == role], shards)
        for role in ("train", "validation", "evaluation", "test")
    )
    if not validation:
        validation = evaluation
    elif not tests:
        tests = evaluation
    for role, candidates in (("training", train), ("validation", validation)):
        if len(candidates) > 1:
            hint = "select the files: data=FILE validation=FILE test=FILE"
            raise UserError(f"{folder}: found several {role} corpora ({shown(candidates)}); {hint}")

    def path(name: str) -> str:
        return ",".join(str(folder / part) for part in name.split(",")) if shards else str(folder / name)

    first = [path(names[0]) if names else None for names in (train, validation)]
    return Splits(first[0], first[1], [path(name) for name in tests])


def find_text_splits(data: str, corpora: Callable[[Path], list[str]], files: Callable[[str], list[Path]]) -> Splits:
    """Return the splits of a directory of texts. If no name in it has a role, all texts are training data.

    Raises UserError if validation or test data exist and the training data are ambiguous.
    """
    if (folder := folder_of(data)) is None:
        return Splits(data, None, [])
    names = corpora(folder)
    splits = splits_among(folder, names, shards=NUMBERED)
    if splits == (None, None, []):
        check_unmixed(files(data))
        return Splits(data, None, [])
    if splits.train is not None:
        return splits
    held_names = [part.name for corpus in (splits.validation, *splits.test) if corpus for part in parts_of(corpus)]
    if len(others := [name for name in names if name not in held_names]) == 1:
        return Splits(str(folder / others[0]), splits.validation, splits.test)
    found = f"{shown(held_names)} as validation and test data, and {shown(others) or 'nothing'} as other files"
    raise UserError(
        f"{folder}: no training data; found {found}. Give the training data a name that contains `train`, or select "
        "the files: data=FILE validation=FILE test=FILE"
    )


def _corpora(names: list[str], shards: re.Pattern[str] | None) -> list[str]:
    """Combine the files of one role (training, validation or test) into corpora.

    Names that differ only in their shard numbers form one corpus and are joined by commas. Names of unlabeled data are
    left out if other names exist.
    """
    names = [name for name in names if not _UNLABELED_WORDS.intersection(_words(name))] or names
    same_structure = shards is not None and len({shards.sub("", name) for name in names}) == 1
    return [",".join(names)] if same_structure and not any("," in name for name in names) else names


def split_folders(folders: Sequence[Path]) -> list[Path]:
    """Return those of the folders in a directory that are splits and contain class folders.

    The list is empty if the folders are classes themselves, even if one of them is named `train` or `test_card`.
    Raises UserError if it is ambiguous which folders are splits.

    folders  all folders in the directory
    """
    named = [folder for folder in folders if role_of(folder.name)]
    inner = {folder: {path.name for path in folders_in(folder)} for folder in folders}
    if any(inner[folder] for folder in named):
        if {role_of(folder.name) for folder in named} == {"train"}:
            classes = [f.name for f in folders if f not in named and inner[f] - inner[named[0]]]
            if classes:
                names = ", ".join(folder.name for folder in named)
                raise UserError(
                    f"{folders[0].parent}: {names} looks like a split, and {shown(classes)} like classes; move "
                    "folders that are not "
                    "classes out of the directory, or select the training data: data=DIR"
                )
        return named
    flat = [folder.name for folder in named if folder.name.lower() in _HELD_OUT_FOLDERS]
    if flat and len(named) < len(folders):
        logger.warning(
            f"{folders[0].parent}: {shown(flat)} is read as a class, because it contains no class folders; if it is a "
            "split, move it out of the directory"
        )
    # If the splits contain no class folders, the reader reports this fault later.
    if named and len(named) == len(folders):
        apart = len({role_of(folder.name) for folder in named}) == len(named)
        return named if apart or all(_words(folder.name)[0] in _WORDS for folder in named) else []
    same_structure = len(folders) > 1 and len(inner[folders[0]]) > 1 and len({*map(frozenset, inner.values())}) == 1
    if same_structure and any(_SPLIT_LIKE.search(folder.name) for folder in folders):
        raise UserError(
            f"{folders[0].parent}: {shown([folder.name for folder in folders])} look like splits and contain the same "
            "folders; rename them to train, validation, test"
        )
    return []


def class_folders_in(folder: Path) -> Path:
    """Return the folder that directly contains the class folders of a split.

    This may be an inner folder: for `seg_train/seg_train/CLASS`, the inner `seg_train` is returned.
    """
    while len(inner := folders_in(folder)) == 1 and role_of(inner[0].name) == role_of(folder.name):
        (folder,) = inner
    return folder


def check_unmixed(files: Sequence[Path]) -> None:
    """Raise UserError if files that together form one corpus have the names of its splits (train.txt and test.txt)."""
    groups: dict[tuple[Path, str], dict[Role, Path]] = {}
    for file in files:
        if (role := role_of(file.name)) and file.suffix.lower() not in SOURCE_SUFFIXES:
            pattern = "".join("*" if word.lower() in _WORDS else word for word in re.split(r"([\W_]+)", file.name))
            groups.setdefault((file.parent, pattern), {})[role] = file
    for (folder, _), roles in groups.items():
        if "train" in roles and len(roles) > 1:
            names = ", ".join(path.name for path in roles.values())
            raise UserError(f"{folder}: {names} look like splits; give their directory: data={folder}")


def describe_roles(folder: Path | None, corpora: dict[str, list[Path]], *, images: bool = False) -> str:
    """Return one line that lists the files or folders of each split, and the unused files of the directory.

    images  True if files may name images in other folders of the directory, which are then not listed as unused
    """
    parts, used = [], set[str]()
    for role, paths in corpora.items():
        names = []
        for path in paths:
            if folder is not None and path.absolute().is_relative_to(folder.absolute()):
                path = path.absolute().relative_to(folder.absolute())
                used.add(path.parts[0])
            names.append(str(path))
        parts += [f"{role} = {shown(names)}"] if names else []
    named = images and all(path.is_file() for paths in corpora.values() for path in paths)
    rest = [] if folder is None else [path for path in visible(folder) if not (named and path.is_dir())]
    if others := [path.name for path in rest if path.name not in used]:
        parts.append(f"not used: {shown(others)}")
    line = f"{'' if folder is None else f'{folder}: '}{'; '.join(parts)}"
    return line.encode(errors="backslashreplace").decode()


def visible(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name. Hidden entries and files of the system are left out."""
    return sorted(path for path in folder.iterdir() if not is_hidden(path.name))


def is_hidden(name: str) -> bool:
    """Return True for hidden entries, for the metadata folders of macOS and for the files of the Windows Explorer."""
    return name.startswith((".", "__MACOSX")) or name.lower() in _SYSTEM_FILES


def folders_in(folder: Path) -> list[Path]:
    return [path for path in visible(folder) if path.is_dir()]


def _words(name: str) -> list[str]:
    """Return the words of a file name in lower case, without digits at the end: test, set, a for `TestSet2_a`."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    words = [word.lower() for word in re.split(r"[\W_]+", apart)]
    return [word if word in _WORDS else word.rstrip("0123456789") for word in words if word] or [""]
