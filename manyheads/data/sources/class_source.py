"""Base class of the data sources whose items have one label each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from manyheads.core.config import TargetKind
from manyheads.data.readers.labeled import LabeledItems, labels_of
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.roles import folders_in
from manyheads.data.readers.rows import Cells
from manyheads.data.readers.splits import SplitData, folder_of, parts_of, same_place
from manyheads.data.readers.tables import class_names, is_table, table
from manyheads.data.sources.source import Source
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=LabeledItems)

_NO_LABEL = ("", "None", "-1", "nan")  # values of a label column that mean "no label"


@dataclass(frozen=True, kw_only=True)
class ClassSource(Source[D]):
    """Data source of items with labels.

    names   label names, for data in which the labels are the numbers 0, 1, ...
    sample  number of training items to use, drawn at random. By default, all items are used
    target  kind of label: "classes" for one label per item, "regression" for a number, "multi-label" for any number
            of labels
    """

    names: tuple[str, ...] = ()
    sample: int | None = None
    target: TargetKind = "classes"

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Possible names of the column of a table that contains the labels."""
        return ("label",)

    def names_for(self, labels: Sequence[str], corpus: str | Rows) -> tuple[str, ...]:
        """Return the names of the labels 0, 1, ... in a corpus.

        The names given to this source have priority, then the names in a Parquet file, then the labels of a model.

        labels  labels of the model that is evaluated on the corpus
        """
        if self.target == "regression":
            return ()
        stored = class_names(parts_of(str(corpus))[0], self.label_columns[0])
        if stored and not self.names and (not labels or set(stored) <= set(labels)):
            return stored
        return self.names or (() if any(label.isdecimal() for label in labels) else tuple(labels))

    def is_unlabeled(self, corpus: str | Rows) -> bool:
        if not isinstance(corpus, Rows) and (folder := folder_of(corpus)) is not None:
            return not folders_in(folder)
        parts = [corpus] if isinstance(corpus, Rows) else [p for p in parts_of(corpus) if p.is_file() and is_table(p)]
        return bool(parts) and all(self._lacks_label(row.cells) for part in parts for row in table(part))

    def files(self, corpus: str) -> list[Path]:
        """Return the paths of the files that form a corpus; for class folders, the paths of the folders."""
        files = super().files(corpus)
        return folders_in(files[0]) if same_place(corpus, self.data) and files[0].is_dir() else files

    def has_labels(self, data: D) -> bool:
        return self.target != "multi-label" or any(data.labels)

    def _lacks_label(self, cells: Cells) -> bool:
        return all(str(cells.get(name, "")).strip() in _NO_LABEL for name in self.label_columns)

    def read(self) -> SplitData[D]:
        """Read all splits, and draw the random sample of the training data.

        Raises UserError if the sample lacks a required label.
        """
        splits = super().read()
        if self.sample is None:
            return splits
        sampled = splits.sampled(self.sample, self.seed)
        found = labels_of(sampled.train.labels, self.target)
        missing = sorted({*labels_of(splits.train.labels, self.target)}.difference(found))
        if missing and not self.is_sufficient(found):
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise UserError(
                f"items={self.sample:,}: the sample has no item with the label {missing[0]!r}{more}; use more items"
            )
        return sampled

    def is_sufficient(self, labels: Sequence[str]) -> bool:
        """Return True if a model can be trained on a random sample in which only these labels occur.

        The whole training data may have more labels. By default, the sample must contain all of them.
        """
        return False

    def check_training(self, train: D) -> None:
        check_labels(train.labels, train.file or self.data, self.target)


def check_labels(labels: Sequence[str], place: object, target: TargetKind = "classes") -> None:
    """Raise UserError if the training data have fewer than two distinct labels (or numbers, for a regression)."""
    if target == "multi-label" and not any(labels):
        raise UserError(f"{place}: no item has a label; expected a list of labels, or names separated by |")
    if target == "multi-label" and {*labels} == {"0", "1"}:
        raise UserError(f"{place}: the labels are 0 and 1; name a column of flags in a list: columns.label=[NAME]")
    if len(set(labels)) < 2:
        what = "number" if target == "regression" else "label"
        raise UserError(f"{place}: found only one {what}, {labels[0]!r}; expected at least two")


def warn_about_absent(columns: str | tuple[str, ...] | None, labels: Sequence[str]) -> None:
    """Log a warning for each of several label columns that no training item has, because the model will lack it."""
    if isinstance(columns, tuple):
        for label in sorted({*columns}.difference(labels_of(labels, "multi-label"))):
            logger.warning(f"no training item has the label {label!r}: the model will not have it")
