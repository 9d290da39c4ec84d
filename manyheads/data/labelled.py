"""Texts, or pairs of texts, with a label each, read strictly from columns, with every fault named by file and line.

    train.tsv       a header line names the columns; cells are not quoted (as GLUE's files)
    train.csv       a header line names the columns; cells may be quoted
    train.jsonl     one object a line
    train.parquet   the same names as columns

Columns are found by their names: `text` or `sentence`; for pairs `sentence1` and `sentence2`, `text` and `text_pair`,
`premise` and `hypothesis`, `question1` and `question2`, or GLUE's `#1 String` and `#2 String`; and `label` (`Quality`).
A directory holds a file per split: `train`, `val`|`valid`|`validation`|`dev`, `test`.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.data.splits import SURROGATE, UTF8, SplitData, half_character, lines_of, read_files

FILES = (".tsv", ".csv", ".jsonl", ".parquet")
_PAIRS = (
    ("sentence1", "sentence2"), ("text", "text_pair"), ("premise", "hypothesis"), ("question1", "question2"),
    ("#1 String", "#2 String"),
)  # fmt: skip
_TEXTS = ("text", "sentence")
_LABELS = ("label", "Quality")
_UNDECODED = "\ud800"  # stands for a line that cannot be decoded: no text that was decoded has it
_NUL = ("a NUL byte", "remove it")


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


class _Row(NamedTuple):
    number: int
    cells: Mapping[str, Any]
    fault: str = ""  # why the row cannot be used
    remedy: str = ""


def read_labelled(
    path: str | Path, columns: Columns | None = None, *, names: Sequence[str] = (), skip_bad_lines: bool = False
) -> Labelled:
    """Reads one file.

    names           what the labels 0, 1, ... of the file are called, if anything
    skip_bad_lines  leave faulty rows out and count them

    Raises FileNotFoundError or a one-line ValueError that names file, line and remedy.
    """
    file = Path(path)
    if file.suffix not in FILES:
        raise ValueError(f"{file}: cannot tell its columns: expected a {', '.join(FILES)} file")
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; give an existing {file.suffix} file")
    if file.stat().st_size == 0:
        raise ValueError(f"{file}: the file is empty; expected a header line or one object a line")
    found, pairs = Labelled([], [], None, [], file), list[str]()
    chosen: tuple[str, str | None, str] | None = None
    counted: Counter[str] = Counter()
    for row in _READERS[file.suffix](file):
        fault, remedy = row.fault, row.remedy
        if not fault:
            chosen = chosen or _choose(columns or Columns(), row, file)
            fault, remedy = _fault(row.cells, chosen, names)
        if fault:
            if not skip_bad_lines:
                raise ValueError(f"{file}:{row.number}: {fault}; {remedy}, or skip such lines with --skip-bad-lines")
            counted[f"{file}: {fault}"] += 1
            continue
        assert chosen is not None
        text, pair, label = chosen
        found.texts.append(row.cells[text])
        found.labels.append(_label(row.cells[label], names))
        found.rows.append(row.number)
        if pair is not None:
            pairs.append(row.cells[pair])
    if not found.texts:
        raise ValueError(f"{file}: no usable row ({sum(counted.values()):,} rows skipped)")
    return replace(found, pairs=pairs or None, skips=dict(counted))


def read_labelled_splits(
    data: str | Path,
    columns: Columns | None = None,
    *,
    names: Sequence[str] = (),
    validation: str | None = None,
    test: str | None = None,
    skip_bad_lines: bool = False,
) -> SplitData[Labelled]:
    """A directory's splits, or one file as the training data, without whose validation 5% is held out by its hash.

    Labels of validation or test data that training does not have are a fault: no model could answer them.
    """
    splits = read_files(
        data, FILES, partial(read_labelled, columns=columns, names=names, skip_bad_lines=skip_bad_lines),
        lambda labelled: labelled.inputs, what="text",
        labels=lambda labelled: [[label] for label in labelled.labels], validation=validation, test=test,
    )  # fmt: skip
    train, known = splits.train, set(splits.train.labels)
    if len(known) < 2:
        raise ValueError(f"{train.file}: one label only, {train.labels[0]!r}: there is nothing to tell apart")
    return splits._replace(
        validation=_known(splits.validation, train, known, skip_bad_lines),
        test=splits.test and _known(splits.test, train, known, skip_bad_lines),
    )


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels in the order that a model counts them: by number where all are numbers, else by name."""
    different = set(labels)
    numbers = all(label.isdecimal() for label in different)
    return tuple(sorted(different, key=lambda label: (int(label) if numbers else 0, label)))  # 1 and 01 are two


def _known(data: Labelled, train: Labelled, known: set[str], skip_bad_lines: bool) -> Labelled:
    """`data` with labels that the training data have, or a ValueError; and pairs if those are pairs."""
    if (data.pairs is None) != (train.pairs is None):
        raise ValueError(f"{data.file} and {train.file}: one has pairs of texts, the other single ones")
    unseen = [i for i, label in enumerate(data.labels) if label not in known]
    if not unseen:
        return data
    first, shown = unseen[0], ", ".join(list(label_order(known))[:8])
    told = f"label {data.labels[first]!r} does not occur in the training data, which have {shown}"
    if not skip_bad_lines:
        raise ValueError(
            f"{data.place(first)}: {told} ({len(unseen):,} such rows); correct it, or skip such lines with"
            " --skip-bad-lines"
        )
    gone = set(unseen)
    kept = data.subset([i for i in range(len(data)) if i not in gone])
    if not len(kept):
        raise ValueError(f"{data.file}: no row has a label of the training data, which have {shown}")
    return replace(kept, skips={**data.skips, f"{data.file}: labels not in the training data": len(unseen)})


def _choose(columns: Columns, row: _Row, file: Path) -> tuple[str, str | None, str]:
    """The names of the columns of text, second text (or None) and label."""
    there = list(row.cells)
    given = [name for name in (columns.text, columns.pair, columns.label) if name is not None]
    for name in given:
        if name not in there:
            raise ValueError(f"{file}:{row.number}: no column {name!r}: it has {', '.join(map(repr, there))}")
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
            f"{file}:{row.number}: no column for {missing}: it has {', '.join(map(repr, there))}{apart}; name"
            " the columns in a header, or give columns.text=NAME columns.label=NAME (and columns.pair=NAME); to"
            " evaluate: --columns text=NAME,label=NAME"
        )
    return text, pair, label


def _fault(cells: Mapping[str, Any], chosen: tuple[str, str | None, str], names: Sequence[str]) -> tuple[str, str]:
    """What is wrong with a row, and the remedy; empty where nothing is."""
    text, pair, label = chosen
    for name in filter(None, (text, pair)):
        value = cells.get(name)
        if not isinstance(value, str):
            return f"{name!r} is {type(value).__name__}, not text", "write a string"
        if not value.strip():
            return f"{name!r} is blank", "fill in or remove the row"
        if half_character(value):
            return f"{name!r} {SURROGATE[0]}", SURROGATE[1]
    value = _whole(cells.get(label))
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        return f"{label!r} is {value!r}, not a label", "write a name or a whole number"
    if str(value) == "-1":
        return "the label -1 means that there is none", "label or remove the row, or the file"
    if names and _label(value, names) not in names:
        return f"label {_label(value, ())!r} is none of {', '.join(names)}", "correct it"
    return "", ""


def _whole(value: Any) -> Any:
    """1.0 is 1: a column of numbers, some of which were missing, is one of floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _label(value: str | float, names: Sequence[str]) -> str:
    text = str(_whole(value)).strip()
    return names[int(text)] if names and text.isdecimal() and int(text) < len(names) else text


def _tsv(file: Path) -> Iterator[_Row]:
    lines = lines_of(file)
    if lines[0] is None:
        raise ValueError(f"{file}:1: {UTF8[0]}; {UTF8[1]}")
    if "\0" in lines[0]:
        raise ValueError(f"{file}:1: {_NUL[0]}; {_NUL[1]}")
    header = lines[0].split("\t")
    for number, line in enumerate(lines[1:], 2):
        if line is None:
            yield _Row(number, {}, *UTF8)
        elif "\0" in line:
            yield _Row(number, {}, *_NUL)
        elif line.strip():
            yield _under(header, line.split("\t"), number, "separate cells by one tab")


def _csv(file: Path) -> Iterator[_Row]:
    csv.field_size_limit(max(csv.field_size_limit(), file.stat().st_size))
    reader = csv.reader((_UNDECODED if line is None else f"{line}\n" for line in lines_of(file)), strict=True)
    header: list[str] | None = None
    number = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield _Row(number, {}, f"not CSV ({error})", 'quote cells as "...", and a quote in them as ""')
        else:
            if any(_UNDECODED in cell for cell in cells):
                yield _Row(number, {}, *UTF8)
            elif any("\0" in cell for cell in cells):
                yield _Row(number, {}, *_NUL)
            elif header is None:
                header = cells
            elif cells:
                yield _under(header, cells, number, "quote cells that hold a comma")
        number = reader.line_num + 1


def _under(header: list[str], cells: list[str], number: int, remedy: str) -> _Row:
    if twice := {name for name in header if header.count(name) > 1}:
        return _Row(number, {}, f"the header names {', '.join(map(repr, sorted(twice)))} twice", "rename one")
    if len(cells) != len(header):
        return _Row(number, {}, f"{len(cells)} columns where the header names {len(header)}", remedy)
    return _Row(number, dict(zip(header, cells, strict=True)))


def _jsonl(file: Path) -> Iterator[_Row]:
    for number, line in enumerate(lines_of(file), 1):
        if line is None:
            yield _Row(number, {}, *UTF8)
        elif line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield _Row(number, {}, f"not JSON ({getattr(error, 'msg', error)})", "write one object a line")
            else:
                if isinstance(record, dict):
                    yield _Row(number, record)
                else:
                    yield _Row(number, {}, f"{type(record).__name__} where an object was expected", "write an object")


def _parquet(file: Path) -> Iterator[_Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches():
            for record in batch.to_pylist():
                number += 1
                yield _Row(number, record)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file}: not a Parquet file ({str(error).splitlines()[0]}); write it again") from None


_READERS: dict[str, Callable[[Path], Iterator[_Row]]] = {
    ".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet,
}  # fmt: skip
