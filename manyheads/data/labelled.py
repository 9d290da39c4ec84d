"""Texts, or pairs of texts, with a label each, read strictly from the columns of a table (`rows.py` has its formats).

Columns are found by their names: `text` or `sentence`; for pairs `sentence1` and `sentence2`, `text` and `text_pair`,
`premise` and `hypothesis`, `question1` and `question2`, or GLUE's `#1 String` and `#2 String`; and `label` (`Quality`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from manyheads.data.rows import Cells, Fault, Row, sift, table, text_fault

D = TypeVar("D", bound=Any)  # labelled texts or images

_PAIRS = (
    ("sentence1", "sentence2"), ("text", "text_pair"), ("premise", "hypothesis"), ("question1", "question2"),
    ("#1 String", "#2 String"),
)  # fmt: skip
_TEXTS = ("text", "sentence")
_LABELS = ("label", "Quality")


@dataclass(frozen=True)
class Columns:
    """The names of the columns, where they are not the usual ones; `pair` is the second text's."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Labelled:
    """Texts with their labels; `pairs` are the second texts, `rows` the line of each, `skips` what was left out."""

    texts: list[str]
    labels: list[str]
    pairs: list[str] | None = None
    rows: list[int] = field(default_factory=list)
    file: Path | None = None
    skips: dict[str, int] = field(default_factory=dict)
    numbered: dict[str, str] = field(default_factory=dict)  # numbers that are written in place of labels

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        kind = "texts" if self.pairs is None else "pairs"
        return f"Labelled({len(self):,} {kind}, {len(set(self.labels)):,} labels, {self.file})"

    @property
    def inputs(self) -> list[str]:
        """Each text, or both texts of a pair with a tab between them."""
        return self.texts if self.pairs is None else [f"{a}\t{b}" for a, b in zip(self.texts, self.pairs, strict=True)]

    def subset(self, chosen: Sequence[int]) -> Labelled:
        return replace(
            self,
            texts=[self.texts[i] for i in chosen],
            labels=[self.labels[i] for i in chosen],
            pairs=None if self.pairs is None else [self.pairs[i] for i in chosen],
            rows=[self.rows[i] for i in chosen] if self.rows else [],
        )

    def place(self, index: int) -> str:
        """Where an item was read, as an error names it."""
        return f"{self.file}:{self.rows[index]}" if self.file and self.rows else f"item {index + 1:,}"


def read_labelled(
    path: str | Path, columns: Columns | None = None, *, names: Sequence[str] = (), skip_bad_lines: bool = False,
    limit: int | None = None,
) -> Labelled:  # fmt: skip
    """Reads one file.

    names           what the labels 0, 1, ... of the file are called, if anything
    skip_bad_lines  leave faulty rows out and count them
    limit           how many texts are read at most

    Raises FileNotFoundError or a one-line ValueError that names file, line and remedy.
    """
    skips: Counter[str] = Counter()
    rows = sift(_rows(table(path), columns or Columns(), names), skips, skip=skip_bad_lines)
    data = Labelled([], [], None, [], Path(path))
    pairs: list[str] = []
    for row in islice(rows, limit):
        text, pair, label, written = row.cells
        if label != written:
            data.numbered[written] = label
        data.texts.append(text)
        data.labels.append(label)
        data.rows.append(row.number)
        if pair is not None:
            pairs.append(pair)
    if not data.texts:
        raise ValueError(f"{path}: no usable row ({sum(skips.values()):,} rows skipped)")
    return replace(data, pairs=pairs or None, skips=dict(skips))


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in the order that a model counts them: by number where all are numbers, else by name."""
    different = set(labels)
    numbers = all(label.isdecimal() for label in different)
    return tuple(sorted(different, key=lambda label: (int(label) if numbers else 0, label)))  # 1 and 01 are two


def with_labels(data: D, known: Collection[str], *, skip_bad_lines: bool = False, unit: str = "rows") -> D:
    """`data`, whose labels are all among the known ones; else a ValueError, or the others are left out and counted.

    unit  what is left out
    """
    unknown = [i for i, label in enumerate(data.labels) if label not in known]
    if not unknown:
        return data
    first, shown = unknown[0], ", ".join(list(label_order(known))[:8])
    if not skip_bad_lines:
        raise ValueError(
            f"{data.place(first)}: label {data.labels[first]!r} does not occur in the training data, which have "
            f"{shown} ({len(unknown):,} such {unit}); correct it, or skip such {unit} with --skip-bad-lines"
        )
    left_out = set(unknown)
    kept = data.subset([i for i in range(len(data)) if i not in left_out])
    if not len(kept):
        raise ValueError(f"{data.file}: none of the {unit} has a label of the training data, which have {shown}")
    return replace(kept, skips={**data.skips, f"{data.file}: labels not in the training data": len(unknown)})


def _rows(
    rows: Iterator[Row[Cells]], columns: Columns, names: Sequence[str]
) -> Iterator[Row[tuple[str, str | None, str, str]]]:
    """Text, second text and label of each row; the first row without a fault decides which columns they are."""
    chosen: tuple[str, str | None, str] | None = None
    for row in rows:
        fault: Fault | None = (row.fault, row.remedy)
        if not row.fault:
            chosen = chosen or _choose(columns, row)
            fault = _fault(row.cells, chosen, names)
        if fault:
            yield Row(row.file, row.number, ("", None, "", ""), *fault)
            continue
        assert chosen is not None
        text, pair, label = chosen
        second = None if pair is None else row.cells[pair]
        written = row.cells[label]
        yield Row(row.file, row.number, (row.cells[text], second, _label(written, names), _label(written, ())))


def _choose(columns: Columns, row: Row[Cells]) -> tuple[str, str | None, str]:
    """The names of the columns of text, second text (or None) and label."""
    there = list(row.cells)
    for name in (columns.text, columns.pair, columns.label):
        if name is not None and name not in there:
            raise ValueError(f"{row.place}: no column {name!r}: it has {', '.join(map(repr, there))}")
    text, pair = columns.text, columns.pair
    if text is None and pair is None:
        pairs = [names for names in _PAIRS if set(names) <= set(there)]
        singles = [name for name in _TEXTS if name in there]
        text, pair = pairs[0] if pairs else (singles[0] if singles else None, None)
    label = columns.label or next((name for name in _LABELS if name in there), None)
    if text is None or label is None:
        missing = "the text (`text`, `sentence`, or pairs as `sentence1`, `sentence2`)" if text is None else "`label`"
        apart = " (which looks separated by ';': separate it by ',')" if len(there) == 1 and ";" in there[0] else ""
        raise ValueError(
            f"{row.place}: no column for {missing}: it has {', '.join(map(repr, there))}{apart}; name"
            " the columns in a header, or give columns.text=NAME columns.label=NAME (and columns.pair=NAME); to"
            " evaluate: --columns text=NAME,label=NAME"
        )
    return text, pair, label


def _fault(cells: Cells, chosen: tuple[str, str | None, str], names: Sequence[str]) -> Fault | None:
    """What is wrong with a row, and the remedy."""
    text, pair, label = chosen
    for name in filter(None, (text, pair)):
        if fault := text_fault(cells.get(name), name):
            return fault
    value = _whole(cells.get(label))
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        return f"{label!r} is {repr(value)[:40]}, not a label", "write a name or a whole number"
    if fault := text_fault(str(value), label):
        return fault
    if str(value) == "-1":
        return "the label -1 means that there is none", "label or remove the row, or the file"
    if names and _label(value, names) not in names:
        return f"label {_label(value, ())!r} is none of {', '.join(names)}", "correct it"
    return None


def _whole(value: Any) -> Any:
    """1.0 is 1: a column of numbers, some of which were missing, is one of floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _label(value: str | float, names: Sequence[str]) -> str:
    text = str(_whole(value)).strip()
    return names[int(text)] if names and text.isdecimal() and int(text) < len(names) else text
