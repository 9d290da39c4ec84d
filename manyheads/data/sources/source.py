"""Data source: the location of a run's data and the options for reading them.

The source is saved in the record of the run (result.json) and can be restored from this record.

source = LabeledSource(data="reviews", columns=Columns(text="body"))
splits = source.read()                            # train, validation, test
record["data"] = source.describe(splits)          # for result.json
source_of(record).read_again("test")              # identical test data, or a UserError (`recorded.py`)
source_of(record).read_evaluation_data("other.csv")  # other data, read with the same options
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from manyheads.data.readers.compressed import format_suffix
from manyheads.data.readers.memory import IN_MEMORY, Rows
from manyheads.data.readers.roles import describe_roles, splits_among
from manyheads.data.readers.splits import SplitData, Splits, absolute, folder_of, hold_out, only_test, parts_of
from manyheads.data.readers.tables import TABLES
from manyheads.errors import UserError, shown
from manyheads.files import fingerprint

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Any)

# At least this number of items is held out, if it is not more than the fraction `LARGE_FRACTION`. A warning names fewer
# items, or a larger fraction.
MIN_HELD_OUT = 50
LARGE_FRACTION = 0.2
HELD_OUT_FRACTION = 0.05
MAX_ITEMS = 10_000_000  # maximum number of items in an embedded corpus
HUB = "hub:"
# fields that do not describe the data and are left out of a record
UNRECORDED = ("recorded", "whole", "cache_folder", "follows", "memory", "in_memory")
FINGERPRINT_DIGITS = 16  # number of hexadecimal digits in a recorded fingerprint


@dataclass(frozen=True, kw_only=True)
class Source(ABC, Generic[D]):
    """Location of data, and the options for reading them.

    data              file or other corpus, or a directory of splits; None: the embedded corpus, generated from
                      `seed`
    validation, test  corpora that are used instead of those in the directory. With the embedded corpus, only
                      sources of texts and documents accept them
    skip_bad_lines    True: leave out and count faulty items
    recorded          fingerprint of each split, if the source was restored from a record
    whole             True: all of `data` is training data, even if files in it are named as validation or test
                      data. It is set if a record names the file of each split
    fraction          fraction of the training data that is held out if there are no validation data; None: 5%, but at
                      least 50 items if these are not more than 20%
    memory            data in memory by split (`readers/memory.py`); `data` is then "data in memory"
    in_memory         True if the record is of a run on data in memory, which cannot be read again
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "items"  # noun for the items, used in messages about held-out or skipped items
    suffixes: ClassVar[tuple[str, ...]] = TABLES  # suffixes of the files that can be a corpus
    tuples: ClassVar[tuple[tuple[str, ...], ...]] = ()  # column names of tuples in memory, by their number of items

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    skip_bad_lines: bool = False
    seed: int = 0
    recorded: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    fraction: float | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    in_memory: bool = False

    def __post_init__(self) -> None:
        check_texts(data=self.data, validation=self.validation, test=self.test)
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise UserError(f"held_out is {self.fraction!r}; expected a fraction between 0 and 1, such as 0.1")
        if not isinstance(self.seed, int) or self.seed < 0 or not isinstance(self.skip_bad_lines, bool):
            raise UserError(
                f"seed is {self.seed!r}, skip_bad_lines is {self.skip_bad_lines!r}; expected an integer of 0 "
                "or more, and a bool"
            )

    # Subclasses override the following methods. `labels` are the labels that a model was trained on.

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> D:
        """Read all items of one corpus. Raises FileNotFoundError or a one-line UserError."""
        raise UserError(f"{corpus}: data of the kind {self.kind} cannot be read from files")

    def embedded(self) -> SplitData[D]:
        """Return the training, validation and test data of the embedded corpus, which requires no download."""
        raise UserError(f"{self.kind} require data: data=PATH of a file, or of a directory with train, val, test")

    def hold_out(self, train: D) -> tuple[D, D]:
        """Split a data set into (training, validation) by a hash of each item."""
        return self.held_out_by_key(train, train.texts, what="item")

    def held_out_by_key(
        self, train: D, keys: Sequence[str], labels: Sequence[Iterable[str]] | None = None, *,
        strata: Sequence[Iterable[str]] | None = None, what: str,
    ) -> tuple[D, D]:  # fmt: skip
        """Split a data set into (training, validation) with `hold_out`, with the options of this source."""
        return hold_out(
            train, keys, labels, fraction=self.fraction_of(len(train)), strata=strata or labels,
            exact=self.fraction is not None, what=what,
        )  # fmt: skip

    def fraction_of(self, items: int) -> float:
        """Return the fraction of `items` training items that is held out if there are no validation data."""
        if self.fraction is not None:
            return self.fraction
        return max(HELD_OUT_FRACTION, min(MIN_HELD_OUT / max(items, 1), LARGE_FRACTION))

    def check_training(self, train: D) -> None:
        """Raise UserError if the data are not sufficient to train a model."""

    def fitting(self, data: D, train: D) -> D:
        """Return validation or test data in a form that is compatible with the training data.

        Raises UserError if they are incompatible, for example because of an unknown label.
        """
        return data

    def held_out(self, splits: SplitData[D]) -> str:
        """Describe in one line which part of the training data was held out for validation."""
        return held_out_line(splits, self.unit)

    @abstractmethod
    def report(self, splits: SplitData[D]) -> str:
        """Return a report on the training, validation and test data as text."""

    def content(self, data: D, split: str) -> Iterable[str]:
        """Return the texts and the labels of a split. The fingerprint of the split is the hash of both."""
        texts: Iterable[str] = data.texts
        return texts

    def fingerprint(self, data: D, split: str) -> str:
        """Return the fingerprint of a split, which depends on the content of all its items."""
        return fingerprint(self.content(data, split))

    def corpora(self, folder: Path) -> list[str]:
        return [path.name for path in folder.iterdir() if path.is_file() and format_suffix(path) in self.suffixes]

    def splits_in(self, folder: Path) -> Splits:
        """Find the training, validation and test data of a directory by the names of the corpora in it."""
        return splits_among(folder, self.corpora(folder))

    def check_exists(self, corpus: str) -> None:
        """Raise FileNotFoundError if a corpus does not consist of files. Pipes are rejected."""
        for part in parts_of(corpus):
            if not part.is_file():
                raise FileNotFoundError(
                    f"{part}: no such file; give an existing file or a directory with train, val, test"
                )

    def check_embedded(self) -> None:
        """Raise UserError for settings that do not apply to the embedded corpus."""
        if named := [name for name in ("validation", "test") if getattr(self, name) is not None]:
            raise UserError(f"{' and '.join(named)} without data: give the training data, too, with data=PATH")

    def test_among(self, data: str | Path, tests: Sequence[str]) -> str | None:
        """Return the test corpus of a run among those of a directory. Raises UserError if there are several."""
        return only_test(data, tests)

    @property
    def expected(self) -> str:
        """Description of the training data that a directory may contain, for error messages."""
        return f"train{self.suffixes[0]} (or {', '.join(self.suffixes[1:])})"

    def find(self, data: str, validation: str | None = None, test: str | None = None) -> Splits:
        """Find the training, validation and test data. If `data` is not a directory of splits, it is the training data.

        Corpora given as `validation` and `test` are used instead of those in the directory. Raises
        FileNotFoundError.
        """
        splits, folder = Splits(data, None, []), folder_of(data)
        if folder is not None:
            splits = self.splits_in(folder)
            if splits == (None, None, []):
                raise FileNotFoundError(
                    f"{folder}: found no data; expected {self.expected}, and val and test in the same format; "
                    f"found {shown(sorted(path.name for path in folder.iterdir()), 8) or 'nothing'}"
                )
        for corpus in filter(None, (None if folder else data, validation, test)):
            self.check_exists(corpus)
        return splits.with_overrides(validation, test)

    # The following methods are common to all sources.

    def splits(self) -> Splits:
        """Return the paths of the training, validation and test data; they are None for an embedded corpus."""
        if self.data == IN_MEMORY:
            if "train" not in self.memory:
                raise UserError(
                    "the run was trained on data in memory: give the same data again, as manyheads.train(resume=RUN, "
                    "train=...) does"
                )
            others = (name if name in self.memory else getattr(self, name) for name in ("validation", "test"))
            return Splits("train", None, []).with_overrides(*others)
        if self.whole and self.data is not None:
            return Splits(self.data, self.validation, [self.test] if self.test else [])
        if self.data is None:
            self.check_embedded()
            return Splits(None, None, []).with_overrides(self.validation, self.test)
        splits = self.find(self.data, self.validation, self.test)
        if splits.train is None:
            raise FileNotFoundError(f"{self.data}: found no training data; expected {self.expected}")
        return splits

    def read(self) -> SplitData[D]:
        """Read all splits.

        If there are no validation data, a part of the training data is held out as validation data. Raises UserError.
        """
        path, validation_path, tests = self.splits()
        if self.data is None:
            return self.embedded()
        assert path is not None
        test_path = self.test_among(Path(path).parent, tests)
        train = self.read_one(self.corpus(path))
        self.check_training(train)
        test = None if test_path is None else self._read_test(self.corpus(test_path), train)
        if validation_path is not None:
            return SplitData(train, self.fitting(self.read_one(self.corpus(validation_path)), train), test)
        try:
            rest, validation = self.hold_out(train)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        return SplitData(rest, validation, test, len(validation))

    def is_unlabeled(self, corpus: str | Rows) -> bool:
        """Return True if a corpus has no labels at all, like the test data of a competition."""
        return False

    def has_labels(self, data: D) -> bool:
        """Return True if an item of a data set has a label."""
        return True

    def _read_test(self, corpus: str | Rows, train: D) -> D | None:
        """Read the test data. Return None for test data without labels, unless the user has named them."""
        try:
            test = self.read_one(corpus)
            if self.test is not None or self.has_labels(test):
                return self.fitting(test, train)
        except UserError:
            if self.test is not None or not self.is_unlabeled(corpus):
                raise
        logger.info(f"{corpus}: the test data have no labels, so they are not scored")
        return None

    def corpus(self, name: str) -> str | Rows:
        """Return the rows of a split in memory; the name of any other corpus remains."""
        return Rows(name, self.memory[name], self.tuples) if name in self.memory else name

    def test_in(self, data: str) -> str:
        """Return the corpus on which to evaluate: `data`, or its test corpus if `data` is a directory of splits."""
        test = only_test(data, self.find(data).test) if folder_of(data) else data
        if test is None:
            raise UserError(f"{data}: found no test data; give the test file itself")
        return test

    def read_evaluation_data(self, data: Any, labels: Sequence[str] = ()) -> D:
        """Read the user's data for evaluation, in a file or in memory, with the same options as the training data."""
        if not isinstance(data, str | Path):
            return self.read_one(Rows("data", data, self.tuples), labels)
        return self.read_one(self.test_in(str(data)), labels)

    def files(self, corpus: str) -> list[Path]:
        """Return the paths of the files or folders that form a corpus."""
        return parts_of(corpus)

    def summary_lines(self, splits: SplitData[D]) -> list[str]:
        """Return lines for the user: the files of each split, and the amount of held-out training data."""
        lines = [] if self.data in (None, IN_MEMORY) or self.data.startswith(HUB) else [self._roles(self.data)]
        return [*lines, self.held_out(splits)] if splits.held_out else lines

    def _roles(self, data: str) -> str:
        train, validation, tests = self.splits()
        corpora = {"train": train, "validation": validation, "test": tests[0] if tests else None}
        files = {role: self.files(corpus) for role, corpus in corpora.items() if corpus}
        return describe_roles(folder_of(data), files)

    def describe(self, splits: SplitData[D]) -> dict[str, Any]:
        """Describe the splits for result.json: the options to read them again, and fingerprints to verify them."""
        train, validation, tests = self.splits()
        settings = {name: value for name, value in asdict(replace(self, memory={})).items() if name not in UNRECORDED}
        if self.memory:
            settings["in_memory"], train, validation, tests = True, None, self.validation, []
        paths = {"data": train, "validation": validation, "test": tests[0] if tests else None}
        return {
            "kind": self.kind,
            **settings,
            **{name: path if path is None or path.startswith(HUB) else absolute(path) for name, path in paths.items()},
            "fingerprints": {
                name: self.fingerprint(data, name)[:FINGERPRINT_DIGITS] for name, data in splits.known.items()
            },
            "items": {name: len(data) for name, data in splits.known.items()},
        }

    def read_again(self, split: str = "test", labels: Sequence[str] = ()) -> D:
        """Read a split again, as the record of its run describes it. `labels` are the labels of the run's model.

        A record may come from an untrusted source. Therefore its paths are opened only if they are files or
        directories and the record contains a fingerprint to verify them. Nothing is downloaded. Raises
        UserError or FileNotFoundError.
        """
        if self.in_memory:
            raise UserError(
                "the run was trained on data in memory; give data to score with --data PATH, or data= in Python"
            )
        expected = self.recorded.get(split)
        if expected is None:
            raise UserError(f"the model was trained without {split} data; give some with --data PATH")
        corpus = {"validation": self.validation, "test": self.test}.get(split)
        for path in filter(None, [corpus] if corpus else [self.data, self.validation, self.test]):
            if path.startswith(HUB):
                raise UserError(
                    f"the run's data are {path}, which is not downloaded automatically; request it with --data {path}"
                )
            self.check_exists(path)
        data = self.read_one(corpus, labels) if corpus else self.read().known.get(split)
        if (
            data is not None
            and len(expected) >= FINGERPRINT_DIGITS
            and self.fingerprint(data, split).startswith(expected)
        ):
            return data
        name = corpus or self.data or "the embedded corpus"
        raise UserError(
            f"{name}: the {split} data changed since the run; to evaluate on the current ones, pass --data {name}"
        )


def held_out_line(splits: SplitData[Any], unit: str, minimum: int = MIN_HELD_OUT) -> str:
    """Describe the held-out validation data in one line.

    A warning follows if the data are fewer than `minimum` items, or a large fraction of the training data.
    """
    fraction = splits.held_out / (splits.held_out + len(splits.train))
    line = f"no validation data: held out {splits.held_out:,} {unit} of the training data ({fraction:.1%})"
    if fraction <= LARGE_FRACTION and splits.held_out >= minimum:
        return line
    amount = "many" if fraction > LARGE_FRACTION else "few"
    return (
        f"{line}\nwarning: these are {amount} {unit} for validation; give validation data with "
        "validation=PATH, or set held_out=FRACTION"
    )


def check_texts(**values: object) -> None:
    """Raise UserError for the first setting that is neither a text nor None."""
    for name, value in values.items():
        if not isinstance(value, str | None):
            raise UserError(f"{name} is {value!r}; expected a text")


def check_counts(**values: object) -> None:
    """Raise UserError for the first setting that is not a number of items between 1 and `MAX_ITEMS`."""
    for name, value in values.items():
        if not isinstance(value, int) or not 1 <= value <= MAX_ITEMS:
            raise UserError(f"{name} is {value!r}; expected 1 to {MAX_ITEMS:,}")


def check_paths(corpus: str) -> None:
    """Raise FileNotFoundError if a corpus does not consist of files and directories. Pipes are rejected."""
    for part in parts_of(corpus):
        if not part.is_file() and not part.is_dir():
            raise FileNotFoundError(f"{part}: no such file or directory")
