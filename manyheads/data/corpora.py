"""Running text, kept as it is: every character is to be predicted.

A corpus is a text file, or a directory of them, hidden ones left out; every file is one text. A directory with `train`,
and perhaps `val`|`valid`|`validation`|`dev` and `test` (files or directories), has its splits. Where there is no
validation data, a share of the training data is held out: whole texts by a hash of what they say, or the end of the
text where there is only one.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from manyheads.data.splits import UTF8, held_out, only_test, splits_among

TABLES = (".jsonl", ".parquet", ".csv", ".tsv")


@dataclass(frozen=True)
class Texts:
    """Texts, the files they come from, and files left out because they are not UTF-8."""

    texts: list[str]
    files: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"Texts({len(self):,} texts, {self.bytes:,} bytes)"

    @property
    def bytes(self) -> int:
        """In UTF-8."""
        return sum(len(text.encode()) for text in self.texts)

    def subset(self, rows: Sequence[int]) -> Texts:
        return Texts([self.texts[i] for i in rows], [self.files[i] for i in rows] if self.files else [])

    @property
    def skips(self) -> dict[str, int]:
        """Why files were left out."""
        return {f"{file}: {UTF8[0]}": 1 for file in self.skipped}


class Corpora(NamedTuple):
    train: Texts
    validation: Texts
    test: Texts | None


def read_texts(path: str | Path, *, skip_bad_files: bool = False) -> Texts:
    """The texts of a file or directory, in the order of their names; files of blanks alone carry nothing.

    Raises FileNotFoundError or a one-line ValueError that names file, line and remedy.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory; give a text file, or a directory of them")
    if path.is_file() and path.suffix.lower() in TABLES:
        raise ValueError(f"{path}: a table, but running text is expected: write its texts into a .txt file")
    below = (file for file in sorted(path.rglob("*")) if file.is_file())
    shown = [file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    texts, files, skipped = [], [], []
    for file in shown if path.is_dir() else [path]:
        data = file.read_bytes().removeprefix(b"\xef\xbb\xbf")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            if not skip_bad_files:
                fault, remedy = UTF8
                line = data.count(b"\n", 0, error.start) + 1
                raise ValueError(
                    f"{file}:{line}: {fault}; {remedy}, or skip such files with --skip-bad-lines"
                ) from None
            skipped.append(file)
            continue
        if text.strip():
            texts.append(text)
            files.append(file)
    if not texts:
        raise ValueError(f"{path}: no text in it ({len(skipped):,} files skipped)")
    return Texts(texts, files, skipped)


def standard_library() -> Texts:
    """The source text of the modules of Python's standard library: what every machine has (about 5 MB).

    Packages are left out: much of theirs is tests and tables.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return Texts([file.read_text(encoding="utf-8") for file in files], files)


def read_corpora(
    data: str | Path | None, *, validation: str | None = None, test: str | None = None, share: float = 0.05,
    skip_bad_files: bool = False,
) -> Corpora:  # fmt: skip
    """Training, validation and test texts of `data` (forms above); None: the standard library's, which has all three.

    validation, test  take precedence over those found
    share             of the training data, held out for validation where there is none (and for test, of the library's)
    """
    if not 0 < share < 1:
        raise ValueError(f"the share to hold out is {share}; expected a number between 0 and 1")

    def read(path: str | None) -> Texts | None:
        return None if path is None else read_texts(path, skip_bad_files=skip_bad_files)

    if data is None:
        train, tested = _split(standard_library(), share, salt="test")  # not the hash that holds out for validation
        held = read(validation)
        if held is None:
            train, held = _split(train, share)
        return Corpora(train, held, read(test) or tested)
    train_path, tests = str(data), []
    folder = Path(data)
    if folder.is_dir():
        found = splits_among(folder, [path.name for path in folder.iterdir()])
        if found.train is not None:
            train_path, tests = found.train, found.test
            validation = validation or found.validation
    train, held = read_texts(train_path, skip_bad_files=skip_bad_files), read(validation)
    if held is None:
        train, held = _split(train, share)
    return Corpora(train, held, read(test or only_test(folder, tests)))


def _split(texts: Texts, share: float, salt: str = "") -> tuple[Texts, Texts]:
    """(kept, held out). What was skipped of both is told of the first."""
    if len(texts) > 1:
        try:
            kept, held = held_out([salt + text for text in texts.texts], share, what="text")
        except ValueError as error:
            raise ValueError(f"{texts.files[0]}: {error}" if texts.files else str(error)) from None
        return replace(texts.subset(kept), skipped=texts.skipped), texts.subset(held)
    (text,) = texts.texts
    cut = int(len(text) * (1 - share))
    if not 0 < cut < len(text):
        where = f"{texts.files[0]}: " if texts.files else ""
        raise ValueError(f"{where}a text of {len(text)} characters cannot be split; give validation data")
    return Texts([text[:cut]], texts.files, texts.skipped), Texts([text[cut:]], texts.files)


def describe(corpora: Corpora) -> str:
    """What the corpora are like, told before training: sizes, duplicates, and what is held out but trained on too."""
    lines = [f"{'corpus':12} {'texts':>8} {'characters':>12} {'bytes':>12} {'lines':>10} {'distinct characters':>20}"]
    known = set(corpora.train.texts)
    warnings = []
    for name, texts in zip(Corpora._fields, corpora, strict=True):
        if texts is None:
            continue
        whole = texts.texts
        sizes = (len(whole), sum(map(len, whole)), texts.bytes, sum(text.count("\n") for text in whole))
        lines.append(
            f"{name:12} {sizes[0]:8,} {sizes[1]:12,} {sizes[2]:12,} {sizes[3]:10,} {len(set().union(*whole)):20,}"
        )
        if texts.skipped:
            warnings.append(f"{len(texts.skipped):,} {name} files are not UTF-8 and skipped, {texts.skipped[0]} first")
        if name == "train":
            if repeated := len(whole) - len(known):
                warnings.append(f"{repeated:,} of {len(whole):,} training texts repeat another one")
        elif overlap := sum(text in known for text in whole):
            warnings.append(
                f"{overlap:,} of {len(whole):,} {name} texts are in the training data: {name} scores flatter"
            )
    return "\n".join([*lines, *(f"warning: {warning}" for warning in warnings)])
