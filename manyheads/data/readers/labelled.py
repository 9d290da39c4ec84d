"""Texts, or pairs of texts, with a label each, read strictly from the columns of a table (`rows.py` has its formats).
Texts may also be files in a folder for each label (`class_folders.py`).

Columns are found by their names: `text` or `sentence`; for pairs `sentence1` and `sentence2`, `text` and `text_pair`,
`premise` and `hypothesis`, `question1` and `question2`, or GLUE's `#1 String` and `#2 String`; and `label` (`Quality`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from manyheads.data.readers.class_folders import text_files
from manyheads.data.readers.dataset import Dataset, leaving_out
from manyheads.data.readers.rows import BadRow, Cells, Row, filter_invalid, parsed, table, text_fault
from manyheads.errors import UserError

D = TypeVar("D", bound=Any)  # labelled texts or images

_PAIRS = (
    ("sentence1", "sentence2"), ("text", "text_pair"), ("premise", "hypothesis"), ("question1", "question2"),
    ("#1 String", "#2 String"),
)  # fmt: skip
_TEXTS = ("text", "sentence")
_LABELS = ("label", "Quality")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
SCORES = (
    "only classes are learned here: write a class for each range of scores, such as low and high, or name another "
    "column with columns.label=NAME"
)
_MOST_DIGITS = 18  # of a label that is a number


@dataclass(frozen=True)
class Columns:
    """The names of the columns, where they are not the usual ones; `pair` is the second text's."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None


@dataclass(frozen=True, repr=False)
class Labelled(Dataset):
    """Texts with their labels; `second_texts` is None if items are single texts.

    numbered  labels by the numbers that the file has in their places
    files     of the texts, where each has one of its own
    """

    columns: ClassVar[tuple[str, ...]] = ("texts", "labels", "second_texts", "files")

    texts: list[str]
    labels: list[str]
    second_texts: list[str] | None = None
    files: list[Path] = field(default_factory=list)
    numbered: dict[str, str] = field(default_factory=dict)

    def place(self, index: int) -> str:
        return str(self.files[index]) if self.files else super().place(index)

    @property
    def inputs(self) -> list[str]:
        """Each text, or both texts of a pair with a tab between them."""
        return (
            self.texts
            if self.second_texts is None
            else [f"{a}\t{b}" for a, b in zip(self.texts, self.second_texts, strict=True)]
        )


def read_labelled(
    path: str | Path, columns: Columns | None = None, *, names: Sequence[str] = (), skip_bad_lines: bool = False,
    limit: int | None = None,
) -> Labelled:  # fmt: skip
    """Reads one file, or one directory of class folders.

    names           what the labels 0, 1, ... of the file are called, if anything; the name of a class folder may also
                    be the beginning of one: `pos` is "positive"
    skip_bad_lines  leave faulty rows, or files, out and count them
    limit           how many texts are read at most

    Raises FileNotFoundError or a one-line UserError that names file, line and remedy.
    """
    if Path(path).is_dir():
        if columns not in (None, Columns()):
            raise UserError(f"{path}: class folders have no columns: leave `columns` out")
        return _read_folders(Path(path), names, skip_bad_lines, limit)
    numbered: dict[str, str] = {}
    scores: list[str] = []  # where labels are
    chosen: tuple[str, str | None, str] | None = None

    def item(row: Row[Cells]) -> tuple[str, ...]:
        nonlocal chosen
        chosen = chosen or _choose(columns or Columns(), row)  # the first row without a fault decides
        text, pair, label = chosen
        if fault := score_fault(row.cells.get(label), label):
            scores.append(row.place)
            raise BadRow(*fault)
        texts = [_text(row.cells, name) for name in (text, pair) if name is not None]
        written, called = _label(row.cells.get(label), label, names)
        if written != called:
            numbered[written] = called
        return (texts[0], called, *texts[1:])

    skips: Counter[str] = Counter()
    rows = filter_invalid(parsed(table(path), item), skips, skip=skip_bad_lines)
    labelled = Labelled.collect(islice(rows, limit), path, skips, "no usable row", SCORES if scores else "")
    if len(scores) > len(labelled):
        raise UserError(f"{scores[0]}: {len(scores):,} labels are numbers that are not whole; {SCORES}")
    return replace(labelled, numbered=numbered)


def _read_folders(folder: Path, names: Sequence[str], skip: bool, limit: int | None) -> Labelled:
    numbered: dict[str, str] = {}

    def item(row: Row[tuple[str, str]]) -> tuple[str, str]:
        text, label = row.cells
        begun = [name for name in names if name.startswith(label)]
        written, called = _label(begun[0] if len(begun) == 1 else label, "label", names)
        if written != called:
            numbered[written] = called
        return text, called

    skips: Counter[str] = Counter()
    rows = filter_invalid(parsed(text_files(folder, skips, limit), item), skips, skip=skip, unit="files", whole=folder)
    kept = list(islice(rows, limit))
    labelled = Labelled.collect(kept, folder, skips, "no text in it")
    return replace(labelled, files=[row.file for row in kept], numbered=numbered)


def number_fault(written: str) -> tuple[str, str] | None:
    """(what is wrong, remedy) with a number that counts no labels: of some thousand digits Python makes none."""
    if not written.isdecimal() or len(written) <= _MOST_DIGITS:
        return None
    return f"label {written[:20]}... has {len(written):,} digits", "is it a column of labels?"


def score_fault(label: Any, name: str) -> tuple[str, str] | None:
    """(what is wrong, remedy) with a label that is a number but not whole."""
    if isinstance(label, str) and _DECIMAL.fullmatch(label.strip()):
        label = float(label)
    if isinstance(label, float) and math.isfinite(label) and not label.is_integer():
        return f"{name!r} is {label}, not a label: a number that is not whole is a score", SCORES
    return None


def label_name(label: Any, names: Sequence[str]) -> str:
    """What a label is called: 0, 1, ... by `names`, if there are any."""
    written = str(label).strip()
    return names[int(written)] if written.isdecimal() and int(written) < len(names) else written


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each with its number where another has the same: "crane (134)", ImageNet's bird, not its machine."""
    counts = Counter(names)
    return tuple(f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(names))


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in the order that a model counts them: by number where all are numbers, else by name."""
    different = set(labels)
    numbers = all(label.isdecimal() for label in different)
    return tuple(sorted(different, key=lambda label: (int(label) if numbers else 0, label)))  # 1 and 01 are two


def with_labels(data: D, known: Collection[str], *, skip_bad_lines: bool = False, unit: str = "rows") -> D:
    """`data`, whose labels are all among the known ones; else a UserError, or the others are left out and counted.

    unit  what is left out
    """
    unknown = [i for i, label in enumerate(data.labels) if label not in known]
    if not unknown:
        return data
    first, shown = unknown[0], ", ".join(list(label_order(known))[:8])
    if not skip_bad_lines:
        raise UserError(
            f"{data.place(first)}: label {data.labels[first]!r} does not occur in the training data, which have "
            f"{shown} ({len(unknown):,} such {unit}); correct it, or skip such {unit} with --skip-bad-lines"
        )
    if len(unknown) == len(data):
        raise UserError(f"{data.file}: none of the {unit} has a label of the training data, which have {shown}")
    kept = [i for i, label in enumerate(data.labels) if label in known]
    return leaving_out(data, kept, "labels not in the training data")


def _choose(columns: Columns, row: Row[Cells]) -> tuple[str, str | None, str]:
    """The names of the columns of text, second text (or None) and label."""
    there = list(row.cells)
    for name in (columns.text, columns.pair, columns.label):
        if name is not None and name not in there:
            raise UserError(f"{row.place}: no column {name!r}: it has {', '.join(map(repr, there))}")
    text, pair = columns.text, columns.pair
    if text is None and pair is None:
        pairs = [names for names in _PAIRS if set(names) <= set(there)]
        singles = [name for name in _TEXTS if name in there]
        text, pair = pairs[0] if pairs else (singles[0] if singles else None, None)
    label = columns.label or next((name for name in _LABELS if name in there), None)
    if text is None or label is None:
        missing = "the text (`text`, `sentence`, or pairs as `sentence1`, `sentence2`)" if text is None else "`label`"
        apart = " (which looks separated by ';': separate it by ',')" if len(there) == 1 and ";" in there[0] else ""
        raise UserError(
            f"{row.place}: no column for {missing}: it has {', '.join(map(repr, there))}{apart}; name"
            " the columns in a header, or give columns.text=NAME columns.label=NAME (and columns.pair=NAME); to"
            " evaluate: --columns text=NAME,label=NAME"
        )
    return text, pair, label


def _text(cells: Cells, name: str) -> str:
    text = cells.get(name)
    if fault := text_fault(text, name):
        raise BadRow(*fault)
    return str(text)


def _label(value: Any, name: str, names: Sequence[str]) -> tuple[str, str]:
    """A label as it is written, and what it is called: one of `names` if there are any, of which it may be a number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of numbers, some of which were missing, is one of floats
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        raise BadRow(f"{name!r} is {repr(value)[:40]}, not a label", "write a name or a whole number")
    written = _text({name: str(value)}, name).strip()
    if written == "-1":
        raise BadRow("the label -1 means that there is none", "label or remove the row, or the file")
    if fault := number_fault(written):
        raise BadRow(*fault)
    called = label_name(written, names)
    if names and called not in names:
        raise BadRow(f"label {written!r} is none of {', '.join(names)}", "correct it")
    return written, called
