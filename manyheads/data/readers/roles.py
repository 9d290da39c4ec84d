"""Roles of files and folders (training, validation or test data) by their names: the only place with these words.

A word of the name says it, in any case, alone or between dots, dashes, underscores and blanks: `Train.txt`,
`wiki.valid.tokens`, `seg_test`, `dev-v1.1.json`, `test2013`, `train-00000-of-00003.parquet`. Of a name with words of
two splits, such as `train_test_labels.csv`, nothing is guessed: it has no role, and a report names it as not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from manyheads.data.readers.splits import Splits, folder_of, parts_of
from manyheads.errors import UserError

Role = Literal["train", "validation", "evaluation", "test"]

NUMBERED = re.compile(r"\d+")  # train-0.txt
PARTS = re.compile(r"-\d+-of-\d+")  # train-00000-of-00003.parquet
_WORDS: dict[str, Role] = {
    **dict.fromkeys(("train", "training", "trainset", "trn"), "train"),
    # CoNLL-2003 calls its files eng.train, eng.testa and eng.testb
    **dict.fromkeys(("val", "valid", "validation", "valset", "dev", "devset", "development", "testa"), "validation"),
    **dict.fromkeys(("eval", "evaluation"), "evaluation"),  # validation data, unless there are others
    **dict.fromkeys(("test", "testing", "testset", "testb", "tst", "t10k"), "test"),
}  # fmt: skip
_ABOUT = {"readme", "notes", "changelog", "log", "config"}  # words of what is no data
_UNLABELLED = {"unlabeled", "unlabelled", "unsup", "unsupervised"}
# in a folder of these, a file called `train` or `test` is mostly one among others
_PAGES = (".md", ".rst", ".html", ".py", ".ipynb", ".sh", ".r", ".js", ".ts", ".c", ".h", ".cpp", ".java", ".go", ".rs")
_LIKE = re.compile("train|valid|test", re.IGNORECASE)
_SHOWN = 4  # names


def role_of(name: str) -> Role | None:
    """The role that a name tells; None for none, or for several."""
    words = _words(name)
    roles = {_WORDS[word] for word in words if word in _WORDS}
    if roles == {"validation", "evaluation"}:
        return "validation"
    return roles.pop() if len(roles) == 1 and not _ABOUT.intersection(words) else None


def roles_of(names: Iterable[str]) -> dict[str, Role]:
    """The roles of those names in a directory that have one."""
    names = list(names)
    roles = {name: role for name in names if (role := role_of(name)) is not None}
    for suffix in {Path(name).suffix.lower() for name in roles}.intersection(_PAGES):
        pages = [name for name in names if Path(name).suffix.lower() == suffix]
        if not all(name in roles and len(_words(Path(name).stem)) == 1 for name in pages):
            roles = {name: role for name, role in roles.items() if name not in pages}
    return roles


def splits_among(folder: Path, names: Iterable[str], *, shards: re.Pattern[str] | None = None) -> Splits:
    """The splits among the corpora of a directory, by their names.

    shards  what the names of the files of one corpus may differ in, `NUMBERED` or `PARTS`; they are joined by commas

    Raises UserError where several could be the training data, or the validation data.
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
            hint = "name each file that you mean: data=FILE validation=FILE test=FILE"
            raise UserError(f"{folder}: several {role} corpora ({shown(candidates)}); {hint}")

    def path(name: str) -> str:
        return ",".join(str(folder / part) for part in name.split(",")) if shards else str(folder / name)

    first = [path(names[0]) if names else None for names in (train, validation)]
    return Splits(first[0], first[1], [path(name) for name in tests])


def whole_or_splits(data: str, corpora: Callable[[Path], list[str]], files: Callable[[str], list[Path]]) -> Splits:
    """The splits of a directory of texts, or all of it as training data. Raises UserError where it cannot be told."""
    if (folder := folder_of(data)) is None:
        return Splits(data, None, [])
    names = corpora(folder)
    splits = splits_among(folder, names, shards=NUMBERED)
    if splits == (None, None, []):
        check_unmixed(files(data))
        return Splits(data, None, [])
    if splits.train is not None:
        return splits
    held = [part.name for corpus in (splits.validation, *splits.test) if corpus for part in parts_of(corpus)]
    if len(others := [name for name in names if name not in held]) == 1:
        return Splits(str(folder / others[0]), splits.validation, splits.test)
    found = f"{shown(held)} of the validation and test data, and next to it {shown(others) or 'nothing'}"
    raise UserError(
        f"{folder}: no training data: there is {found}; give the training data a name with `train` in it, or name each "
        "file that you mean: data=FILE validation=FILE test=FILE"
    )


def _corpora(names: list[str], shards: re.Pattern[str] | None) -> list[str]:
    """The corpora of one role; shards, names that differ in nothing else, are one, joined by commas."""
    names = [name for name in names if not _UNLABELLED.intersection(_words(name))] or names
    alike = shards is not None and len({shards.sub("", name) for name in names}) == 1
    return [",".join(names)] if alike and not any("," in name for name in names) else names


def split_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders of a directory that are splits, which hold folders of classes. None if the folders are classes
    themselves, even if one is called `train` or `test_card`. Raises UserError if the names do not decide it."""
    named = [folder for folder in folders if role_of(folder.name)]
    inside = {folder: {path.name for path in folders_in(folder)} for folder in folders}
    if any(inside[folder] for folder in named):
        if {role_of(folder.name) for folder in named} == {"train"}:
            classes = [f.name for f in folders if f not in named and inside[f] - inside[named[0]]]
            if classes:
                names = ", ".join(folder.name for folder in named)
                raise UserError(
                    f"{folders[0].parent}: {names} looks like a split, {shown(classes)} like classes: move what are no "
                    "classes out of the directory, or name the training data: data=DIR"
                )
        return named
    if named and len(named) == len(folders):  # without classes: the one who reads them says so
        apart = len({role_of(folder.name) for folder in named}) == len(named)
        return named if apart or all(_words(folder.name)[0] in _WORDS for folder in named) else []
    alike = len(folders) > 1 and len(inside[folders[0]]) > 1 and len({*map(frozenset, inside.values())}) == 1
    if alike and any(_LIKE.search(folder.name) for folder in folders):
        raise UserError(
            f"{folders[0].parent}: {shown([folder.name for folder in folders])} look like splits, and hold the same "
            "folders: rename them to train, validation, test"
        )
    return []


def within(folder: Path) -> Path:
    """The folder that holds a split's class folders: the inner one of `seg_train/seg_train/CLASS`."""
    while len(inside := folders_in(folder)) == 1 and role_of(inside[0].name) == role_of(folder.name):
        (folder,) = inside
    return folder


def check_unmixed(files: Sequence[Path]) -> None:
    """Raises UserError for files that are splits of one corpus, below the directory that is to be read as a whole."""
    groups: dict[tuple[Path, str], dict[Role, Path]] = {}
    for file in files:
        if (role := role_of(file.name)) and file.suffix.lower() not in _PAGES:
            pattern = "".join("*" if word.lower() in _WORDS else word for word in re.split(r"([\W_]+)", file.name))
            groups.setdefault((file.parent, pattern), {})[role] = file
    for (folder, _), roles in groups.items():
        if "train" in roles and len(roles) > 1:
            names = ", ".join(path.name for path in roles.values())
            raise UserError(f"{folder}: {names} look like splits; name their directory: data={folder}")


def log_roles(folder: Path | None, corpora: dict[str, list[Path]]) -> str:
    """A line that says which files or folders are which split, and which ones of the directory are not used."""
    parts, used = [], set[str]()
    for role, paths in corpora.items():
        names = []
        for path in paths:
            if folder is not None and path.absolute().is_relative_to(folder.absolute()):
                path = path.absolute().relative_to(folder.absolute())
                used.add(path.parts[0])
            names.append(str(path))
        parts += [f"{role} = {shown(names)}"] if names else []
    if others := [] if folder is None else [path.name for path in visible(folder) if path.name not in used]:
        parts.append(f"not used: {shown(others)}")
    line = f"{'' if folder is None else f'{folder}: '}{'; '.join(parts)}"
    return line.encode(errors="backslashreplace").decode()


def shown(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def visible(folder: Path) -> list[Path]:
    """The files and folders in a folder, sorted by name, without hidden ones and those that macOS adds to archives."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX")))


def folders_in(folder: Path) -> list[Path]:
    return [path for path in visible(folder) if path.is_dir()]


def _words(name: str) -> list[str]:
    """The words of a name in lower case, without numbers at their ends: of `TestSet2_a` test, set, a."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    words = [word.lower() for word in re.split(r"[\W_]+", apart)]
    return [word if word in _WORDS else word.rstrip("0123456789") for word in words if word] or [""]
