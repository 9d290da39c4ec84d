"""Reader of labeled texts, or labeled pairs of texts, from the columns of a table (see `tables.py` for its formats).

Texts may also be files in one folder per label (`class_folders.py`). The reader finds the columns by their names:

    single texts  `text` or `sentence`
    pairs         `sentence1` and `sentence2`, `text` and `text_pair`, `premise` and `hypothesis`, `question1` and
                  `question2`, or `#1 String` and `#2 String` (GLUE)
    labels        `label` or `Quality`
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import ClassVar, Protocol, Self, TypeVar, cast, get_args

from manyheads.core.config import LabelType, TargetKind
from manyheads.data.readers import label_lists
from manyheads.data.readers.class_folders import text_files
from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import BadRow, Cells, Row, parse_rows, skip_option, text_fault
from manyheads.data.readers.splits import Data
from manyheads.data.readers.tables import table
from manyheads.errors import UserError, shown

PAIRS = (
    ("sentence1", "sentence2"), ("text", "text_pair"), ("premise", "hypothesis"), ("question1", "question2"),
    ("#1 String", "#2 String"),
)  # fmt: skip
TEXTS = ("text", "sentence")
LABELS = ("label", "Quality")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
SCORES = "to predict a number, set target=regression; or select another column with columns.label=NAME"
SEVERAL = "to predict several labels, set target=multi-label"
REGRESSION_LABELS = ("LABEL_0",)  # label of a model that predicts a number, as transformers writes it
_WHOLE = re.compile(r"(-?\d+)\.0*")  # whole number that is written as a fraction, as pandas writes it
_UNLABELED_HINT = "label or remove the item; if -1 is a class, write a name instead, such as negative"
_MAX_DIGITS = 18  # maximum number of digits in a numeric label


class LabeledItems(Data, Protocol):
    """Protocol of a data set of labeled texts or images."""

    @property
    def labels(self) -> list[str]: ...
    @property
    def target(self) -> TargetKind: ...
    @property
    def file(self) -> Path | None: ...

    def place(self, index: int, /) -> str: ...

    def keep(self, kept: Sequence[int], reason: str) -> Self: ...


D = TypeVar("D", bound=LabeledItems)


@dataclass(frozen=True)
class Columns:
    """Names of the table columns, if they differ from the default names.

    text    column of the text, or of the first text of a pair; None: the default name
    pair    column of the second text; None: the default name
    label   column of the label; None: the default name. For several labels per text, also a list of columns with a
            zero or one for each label, whose names are the labels
    weight  column of the factors of the training loss of each item; None: all items have the same weight
    """

    text: str | None = None
    pair: str | None = None
    label: str | tuple[str, ...] | None = None
    weight: str | None = None


@dataclass(frozen=True, repr=False)
class Labeled(Dataset):
    """Data set of labeled texts, or of labeled pairs of texts.

    texts         text of each item, or the first text of each pair
    labels        label name of each item. For a regression, this is the number as text. For several labels per item,
                  it is their names joined by "|"
    second_texts  second text of each pair. None if the items are single texts
    files         path of each text, if every text is a separate file
    numbered      mapping from each label number in the file to the label name
    target        kind of label: one class, several classes, or a number
    label_type    type that the labels have in the file or in memory; `labels` always contains strings
    weights       factor of the training loss of each item. Empty if all items have the same weight
    """

    columns: ClassVar[tuple[str, ...]] = ("texts", "labels", "second_texts", "files", "weights")

    texts: list[str]
    labels: list[str]
    second_texts: list[str] | None = None
    files: list[Path] = field(default_factory=list)
    numbered: dict[str, str] = field(default_factory=dict)
    target: TargetKind = "classes"
    label_type: LabelType = "str"
    weights: list[float] = field(default_factory=list)

    def place(self, index: int) -> str:
        return str(self.files[index]) if self.files else super().place(index)

    @property
    def inputs(self) -> list[str]:
        """List of one string per item: the text, or the two texts of a pair joined by a tab."""
        return (
            self.texts
            if self.second_texts is None
            else [f"{a}\t{b}" for a, b in zip(self.texts, self.second_texts, strict=True)]
        )


def read_labeled(
    path: str | Path | Rows, columns: Columns | None = None, *, names: Sequence[str] = (), skip_bad_lines: bool = False,
    target: TargetKind = "classes",
) -> Labeled:  # fmt: skip
    """Read labeled texts from one table, or from one directory of class folders.

    target          "classes": the column has one label per text; "regression": a number; "multi-label": a list of
                    labels, or labels separated by "|" (`label_lists.py`)
    names           label names, for files that contain the numbers 0, 1, ... The name of a class folder may be the
                    beginning of a label name: `pos` for "positive"
    skip_bad_lines  True: leave out and count faulty rows or files

    Raises FileNotFoundError, or a one-line UserError that names the file, the line and a remedy.
    """
    if not isinstance(path, Rows) and Path(path).is_dir():
        if columns not in (None, Columns()):
            raise UserError(f"{path}: class folders have no columns; omit `columns`")
        if target != "classes":
            raise UserError(f"{path}: class folders give one class per text; for target={target}, give a table")
        return _read_folders(Path(path), names, skip_bad_lines)
    numbered: dict[str, str] = {}
    types = set[type]()
    scores: list[str] = []  # file and line of each fractional number in the label column
    selected: tuple[str, str | None, str | tuple[str, ...], str | None] | None = None
    weights: list[float] = []

    def item(row: Row[Cells]) -> tuple[str, ...]:
        nonlocal selected
        # The first row without a fault determines the names of the columns.
        selected = selected or _choose(columns or Columns(), row)
        text, pair, label, weight = selected
        value, column = label_lists.label_cell(row.cells, label), label if isinstance(label, str) else "label"
        if target == "classes" and (fault := score_fault(value, column)):
            scores.append(row.place)
            raise BadRow(*fault)
        texts = [text_of(row.cells, name) for name in (text, pair) if name is not None]
        if target != "classes":
            name = parse_target(value, column, names if isinstance(label, str) else (), target, types)
        else:
            written, name = _label(value, column, names)
            types.add(type(value))
            if written != name:
                numbered[written] = name
        if weight is not None:
            weights.append(_weight(row.cells.get(weight), weight))
        return (texts[0], name, *texts[1:])

    rows = parse_rows(table(path), item)
    labeled = Labeled.collect(rows, path, "no usable row found", skip=skip_bad_lines)
    if len(scores) > len(labeled):
        raise UserError(f"{scores[0]}: {len(scores):,} labels are not integers; {SCORES}")
    if target == "multi-label":
        label_lists.check_separators(label_sets(labeled.labels, target), names, path)
    kind = common_type(types, names)
    return replace(labeled, numbered=numbered, target=target, label_type=kind, weights=weights)


def parse_target(value: object, name: str, names: Sequence[str], target: TargetKind, types: set[type]) -> str:
    """Return the label of an item as text: a class name, a number (regression), or class names joined by "|".

    Raises BadRow for a value that does not fit `target`.

    value  value of the label column
    name   column name for error messages
    names  class names, if the values are class indices
    types  types of the labels of all items so far. This function adds the types of the labels of this item
    """
    if target == "classes":
        if fault := score_fault(value, name):
            raise BadRow(*fault)
        label = _label(value, name, names)[1]
        types.add(type(value))
        return label
    if target == "regression":
        if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
            value = float(value)
        if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
            raise BadRow(f"expected a number in {name!r}, found {repr(value)[:40]}", "write a number")
        return repr(float(value))
    try:
        values = label_lists.labels_in(value, name)
        labels = [_label(label, name, names)[1] for label in values]
    except BadRow as bad:
        separated = names and isinstance(value, str) and label_lists.OTHERS.search(value)
        raise BadRow(bad.fault, label_lists.SEPARATED) if separated else bad from None
    if any(label_lists.SEPARATOR in label for label in labels):
        raise BadRow(f"a label in {name!r} contains {label_lists.SEPARATOR!r}", "write it without")
    types.update(map(type, values))
    return label_lists.SEPARATOR.join(label_order(labels))


def common_type(types: Collection[type], names: Collection[str]) -> LabelType:
    """Return the common type of labels, given the set of their types.

    The type is "float" for integers and floats together. It is "str" for other mixed types, and for numbers that are
    replaced by `names`.
    """
    kinds = {kind.__name__ for kind in types}
    found = "float" if kinds == {"int", "float"} else kinds.pop() if len(kinds) == 1 else "str"
    return cast(LabelType, found if found in get_args(LabelType) and not names else "str")


def label_sets(labels: Iterable[str], target: TargetKind) -> list[tuple[str, ...]]:
    """Return a tuple of labels for each item. For a regression, all tuples are empty."""
    if target == "multi-label":
        return [tuple(label.split(label_lists.SEPARATOR)) if label else () for label in labels]
    return [(label,) if target == "classes" else () for label in labels]


def labels_of(labels: Iterable[str], target: TargetKind) -> tuple[str, ...]:
    """Return the classes of a model, in class order, given the labels of its training items."""
    found = chain.from_iterable(label_sets(labels, target))
    return REGRESSION_LABELS if target == "regression" else label_order(found)


def _read_folders(folder: Path, names: Sequence[str], skip: bool) -> Labeled:
    numbered: dict[str, str] = {}
    files: list[Path] = []

    def item(row: Row[tuple[str, str]]) -> tuple[str, str]:
        text, label = row.cells
        candidates = [name for name in names if name.startswith(label)]
        written, name = _label(candidates[0] if len(candidates) == 1 else label, "label", names)
        if written != name:
            numbered[written] = name
        files.append(row.file)
        return text, name

    skips: Counter[str] = Counter()
    rows = parse_rows(text_files(folder, skips), item)
    labeled = Labeled.collect(rows, folder, "no text found", skip=skip, unit="files", corpus=folder, skips=skips)
    return replace(labeled, files=files, numbered=numbered)


def score_fault(label: object, name: str) -> tuple[str, str] | None:
    """Return a fault and a hint if a label is a fractional number, which cannot be a class; otherwise return None."""
    if isinstance(label, str) and _DECIMAL.fullmatch(label.strip()):
        label = float(label)
    if isinstance(label, float) and math.isfinite(label) and not label.is_integer():
        return f"{name!r} is a score, not a label: {label} is not an integer", SCORES
    return None


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """Make repeated label names distinct by appending the class index.

    For example, ImageNet has two classes "crane"; the bird becomes "crane (134)".
    """
    counts = Counter(names)
    return tuple(f"{name} ({i})" if counts[name] > 1 else name for i, name in enumerate(names))


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct labels in class order: sorted by number if all are numbers, otherwise sorted by name."""
    distinct = set(labels)
    numbers = all(label.isdecimal() for label in distinct)
    # Labels are compared as text, too, because "1" and "01" are distinct labels.
    return tuple(sorted(distinct, key=lambda label: (int(label) if numbers else 0, label)))


def with_labels(data: D, known: Collection[str], *, skip_bad_lines: bool = False, unit: str = "rows") -> D:
    """Check that all labels of `data` are in the list of known labels, and return the data.

    If a label is unknown, raise UserError. If `skip_bad_lines` is true, leave out and count the items with unknown
    labels instead.

    unit  noun for the items in messages, such as "texts"
    """
    if data.target == "regression":
        return data
    known = set(known)
    unknown = [i for i, labels in enumerate(label_sets(data.labels, data.target)) if not known.issuperset(labels)]
    if not unknown:
        return data
    first, labels = unknown[0], shown(label_order(known), 8)
    if not skip_bad_lines:
        raise UserError(
            f"{data.place(first)}: label {data.labels[first]!r} does not occur in the training data, which has labels "
            f"{labels} ({len(unknown):,} such {unit}); correct it, or skip such {unit} with "
            f"{skip_option(data.file, unit)}"
        )
    if len(unknown) == len(data):
        raise UserError(f"{data.file}: none of the {unit} has a label of the training data, which has labels {labels}")
    kept = sorted({*range(len(data))}.difference(unknown))
    return data.keep(kept, "labels not in the training data")


def text_columns(columns: Columns, available: Collection[str]) -> tuple[str | None, str | None]:
    """Return the names of the text column and the second text column; None for a column that is not found."""
    if columns.text is not None or columns.pair is not None:
        return columns.text, columns.pair
    pairs = [names for names in PAIRS if set(names) <= set(available)]
    return pairs[0] if pairs else (next((name for name in TEXTS if name in available), None), None)


def _choose(columns: Columns, row: Row[Cells]) -> tuple[str, str | None, str | tuple[str, ...], str | None]:
    """Find the columns of a table.

    Return the names of the text column, the second text column (or None), the label column or columns, and the weight
    column (None if the table has none, such as test data).
    """
    available = list(row.cells)
    labels = columns.label if isinstance(columns.label, tuple) else (columns.label,)
    for name in (columns.text, columns.pair, *labels):
        if name is not None and name not in available:
            raise UserError(f"{row.place}: expected a column {name!r}, found {', '.join(map(repr, available))}")
    text, pair = text_columns(columns, available)
    label = columns.label or next((name for name in LABELS if name in available), None)
    if text is None or label is None:
        missing = "the text (`text`, `sentence`, or pairs as `sentence1`, `sentence2`)" if text is None else "`label`"
        raise UserError(
            f"{row.place}: found no column for {missing} among {', '.join(map(repr, available))}; name"
            " the columns in a header line, or set columns.text=NAME columns.label=NAME (and columns.pair=NAME); for"
            " evaluation, pass --columns text=NAME,label=NAME"
        )
    return text, pair, label, columns.weight if columns.weight in available else None


def _weight(value: object, name: str) -> float:
    weight = float(parse_target(value, name, (), "regression", set()))
    if weight < 0:
        raise BadRow(f"expected a weight of 0 or more in {name!r}, found {weight:g}", "correct it")
    return weight


def text_of(cells: Cells, name: str) -> str:
    text = cells.get(name)
    if fault := text_fault(text, name):
        raise BadRow(*fault)
    return str(text)


def _label(value: object, name: str, names: Sequence[str]) -> tuple[str, str]:
    """Return a label as written in the file, and its name.

    If `names` is given, the label must be a name or an index. A whole number such as 1.0 becomes 1.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # The table library reads a column of integers with missing values as floats.
    if isinstance(value, list | tuple) or (isinstance(value, str) and label_lists.listed_in(value) is not None):
        raise BadRow(f"{name!r} has a list of labels", SEVERAL)
    if isinstance(value, bool) and len(names) == 2 and str(value) not in names:
        value = int(value)  # False and True are the indices 0 and 1 of two names.
    if not isinstance(value, str | int) or not str(value).strip():
        raise BadRow(f"expected a label in {name!r}, found {repr(value)[:40]}", "write a name or an integer")
    written = text_of({name: str(value)}, name).strip()
    if written not in names and (whole := _WHOLE.fullmatch(written)):
        written = whole[1]
    if written == "-1":
        raise BadRow("the label -1 means unlabeled", _UNLABELED_HINT)
    if written.isdecimal() and len(written) > _MAX_DIGITS:  # Python refuses to convert thousands of digits.
        fault = f"label {written[:20]}... has {len(written):,} digits"
        raise BadRow(fault, "check that this is the label column")
    label = names[int(written)] if written.isdecimal() and int(written) < len(names) else written
    if names and label not in names:
        known = f"{shown(names, 8)} (0 to {len(names) - 1})"
        raise BadRow(f"expected one of the labels {known}, found {written!r}", "correct it")
    return written, label
