"""A run's data as one value: where they lie and how they are read, which is written into its record and read from it.

source = LabelledSource(data="reviews", columns=Columns(text="body"))
splits = source.read()                       # train, validation, test
record["data"] = source.describe(splits)     # into result.json
source_of(record).again("test")              # the very same test data, or a UserError (`recorded.py`)
source_of(record).named("other.csv")         # other data, read in the same way
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from manyheads.data.readers.compressed import kind
from manyheads.data.readers.roles import log_roles, splits_among
from manyheads.data.readers.rows import TABLES
from manyheads.data.readers.splits import SplitData, Splits, absolute, folder_of, hold_out, only_test, parts_of
from manyheads.errors import UserError
from manyheads.files import fingerprint

D = TypeVar("D", bound=Any)

FIRST = 1000  # items that a look at the data reads
MUCH = 0.2  # of the training data: so much is seldom meant to be held out
MOST = 10_000_000  # items of an embedded corpus
HUB = "hub:"
UNRECORDED = ("recorded", "whole", "by_number", "kept", "follows")  # fields that do not describe the data
DIGITS = 16  # hexadecimal ones of a fingerprint that a record keeps


@dataclass(frozen=True, kw_only=True)
class Source(ABC, Generic[D]):
    """Where data lie and how they are read.

    data              a corpus, or a directory of splits; None: the embedded corpus, drawn by `seed`
    validation, test  corpora that take precedence over those of the directory; beside an embedded corpus, only of texts
                      and documents
    skip_bad_lines    leave out what is faulty, and count it
    recorded          the fingerprint of each split, where this was read from a record
    whole             `data` are the training data, whatever a name in them says: from a record, which names each split
    by_number         hold out as earlier versions did: so many items, of whatever size
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "items"  # what is held out, and left out
    suffixes: ClassVar[tuple[str, ...]] = TABLES  # of the files that are corpora
    directories: ClassVar[bool] = False  # whether a corpus may be a directory, too
    first_test: ClassVar[bool] = False  # of several test corpora the first is read; else they are an error
    mixes: ClassVar[bool] = False  # whether `validation` and `test` may stand beside the embedded corpus

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    skip_bad_lines: bool = False
    seed: int = 0
    recorded: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    by_number: bool = False

    def __post_init__(self) -> None:
        for name in ("data", "validation", "test", "column"):
            if not isinstance(getattr(self, name, None), str | None):
                raise UserError(f"{name} is {getattr(self, name)!r}: expected a text")
        for name in ("size", "tested", "longest"):
            if not isinstance(value := getattr(self, name, 1), int) or not 1 <= value <= MOST:
                raise UserError(f"{name} is {value!r}: expected 1 to {MOST:,}")
        if not isinstance(self.seed, int) or self.seed < 0 or not isinstance(self.skip_bad_lines, bool):
            raise UserError(
                f"seed is {self.seed!r}, skip_bad_lines {self.skip_bad_lines!r}: expected 0 or more, a bool"
            )

    # What each kind of data does in its own way. `labels` are those that a model knows, `limit` is the number of items
    # read at most.

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> D:
        """One corpus by itself. Raises FileNotFoundError or a one-line UserError."""
        raise UserError(f"{corpus}: {self.kind} are not read from files")

    def embedded(self) -> SplitData[D]:
        """The corpus that needs no download."""
        raise UserError(f"{self.kind} need their data: data=PATH of a file, or of a directory with train, val, test")

    def hold_out(self, train: D) -> tuple[D, D]:
        """(for training, for validation), by a hash."""
        return hold_out(train, train.texts, what="item")

    def check_training(self, train: D) -> None:
        """Raises UserError for training data of which nothing can be learned."""

    def fitting(self, data: D, train: D) -> D:
        """Validation or test data, where a model trained on `train` can be scored on them. Raises UserError."""
        return data

    def held_out(self, splits: SplitData[D]) -> str:
        """A line that says how much of the training data is held out."""
        share = splits.held_out / (splits.held_out + len(splits.train))
        few = "; give validation data: validation=PATH" if share > MUCH else ""
        return (
            f"no validation data: {splits.held_out:,} {self.unit} of the training data are held out ({share:.1%}){few}"
        )

    @abstractmethod
    def report(self, splits: SplitData[D]) -> str:
        """What the data are like."""

    def content(self, data: D, split: str) -> Iterable[str]:
        """The texts and labels of a split, for its fingerprint."""
        texts: Iterable[str] = data.texts
        return texts

    def fingerprint(self, data: D, split: str) -> str:
        """Of the content of a split."""
        return fingerprint(self.content(data, split))

    def corpora(self, folder: Path) -> list[str]:
        return [path.name for path in folder.iterdir() if path.is_file() and kind(path) in self.suffixes]

    def splits_in(self, folder: Path) -> Splits:
        """The corpora of a directory, by their names."""
        return splits_among(folder, self.corpora(folder))

    def check_exists(self, corpus: str) -> None:
        """Raises FileNotFoundError for what is no corpus, such as a pipe."""
        for part in parts_of(corpus):
            if self.directories and not part.is_file() and not part.is_dir():
                raise FileNotFoundError(f"{part}: no such file or directory")
            if not self.directories and not part.is_file():
                raise FileNotFoundError(
                    f"{part}: no such file; give an existing file or a directory with train, val, test"
                )

    @property
    def expected(self) -> str:
        """What training data a directory may have."""
        return f"train{self.suffixes[0]} (or {', '.join(self.suffixes[1:])})"

    def find(self, data: str, validation: str | None = None, test: str | None = None) -> Splits:
        """The corpora behind `data`: those of a directory's splits, or `data` itself as the training data.
        `validation` and `test` take precedence over those of the directory. Raises FileNotFoundError."""
        splits, folder = Splits(data, None, []), folder_of(data)
        if folder is not None:
            splits = self.splits_in(folder)
            if splits == (None, None, []):
                names = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
                raise FileNotFoundError(
                    f"{folder}: no data there; expected {self.expected}, and val, test likewise; found {names}"
                )
        for corpus in filter(None, (None if folder else data, validation, test)):
            self.check_exists(corpus)
        return splits.given(validation, test)

    # What all do alike.

    def splits(self) -> Splits:
        """What each split is read from; nothing for an embedded corpus."""
        if self.whole and self.data is not None:
            return Splits(self.data, self.validation, [self.test] if self.test else [])
        if self.data is None:
            given = [name for name in ("validation", "test") if getattr(self, name) is not None]
            if given and not self.mixes:
                raise UserError(f"{' and '.join(given)} without data: name the training data, too, with data=PATH")
            return Splits(None, None, []).given(self.validation, self.test)
        splits = self.find(self.data, self.validation, self.test)
        if splits.train is None:
            raise FileNotFoundError(f"{self.data}: no training data; expected {self.expected}")
        return splits

    def read(self) -> SplitData[D]:
        """All splits; missing validation data are held out of the training data. Raises UserError."""
        path, validation_path, tests = self.splits()
        if self.data is None:
            return self.embedded()
        assert path is not None
        test_path = tests[0] if self.first_test and tests else only_test(Path(path).parent, tests)
        train = self.read_one(path)
        self.check_training(train)
        test = None if test_path is None else self.fitting(self.read_one(test_path), train)
        if validation_path is not None:
            return SplitData(train, self.fitting(self.read_one(validation_path), train), test)
        try:
            rest, validation = self.hold_out(train)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        return SplitData(rest, validation, test, len(validation))

    def readings(self) -> list[Self]:
        """This, and how earlier versions took the same data: they knew fewer names of splits, and held out others."""
        return [self, replace(self, by_number=True), replace(self, by_number=True, whole=True)]

    def read_as_before(self, fingerprints: Mapping[str, str]) -> tuple[Self, SplitData[D]]:
        """The splits with these fingerprints, where any reading gives them; else those of today."""
        first: SplitData[D] | None = None
        for source in self.readings() if fingerprints and self.data is not None else [self]:
            try:
                splits = source.read()
            except (UserError, FileNotFoundError):
                if first is None:
                    raise
                continue
            first = first or splits
            now = {name: source.fingerprint(data, name) for name, data in splits.known.items()}
            if all(now.get(name, "").startswith(old[:DIGITS]) for name, old in fingerprints.items()):
                return source, splits
        assert first is not None
        return self, first

    def peek(self) -> D | None:
        """The first part of the training data as training would read it, with its faults: for a dry run. None for an
        embedded corpus."""
        train = self.splits().train
        return None if train is None else self.read_one(train, limit=FIRST)

    def test_in(self, data: str) -> str:
        """What the user names to score on: a corpus, or the test data of a directory."""
        test = only_test(data, self.find(data).test) if folder_of(data) else data
        if test is None:
            raise UserError(f"{data}: no test data there; name the file itself")
        return test

    def named(self, data: str, labels: Sequence[str] = ()) -> D:
        """Data that the user names to score on, read as the training data were."""
        return self.read_one(self.test_in(data), labels)

    def files(self, corpus: str) -> list[Path]:
        """The files, or folders, that a corpus is read from."""
        return parts_of(corpus)

    def told(self, splits: SplitData[D]) -> list[str]:
        """Lines that say which file or folder is which split, and how much of the training data is held out."""
        lines = [] if self.data is None or self.data.startswith(HUB) else [self._roles(self.data)]
        return [*lines, self.held_out(splits)] if splits.held_out else lines

    def _roles(self, data: str) -> str:
        train, validation, tests = self.splits()
        corpora = {"train": train, "validation": validation, "test": tests[0] if tests else None}
        files = {role: self.files(corpus) for role, corpus in corpora.items() if corpus}
        return log_roles(folder_of(data), files)

    def describe(self, splits: SplitData[D]) -> dict[str, Any]:
        """For result.json: settings that read the splits again, and fingerprints to check that they are the same."""
        train, validation, tests = self.splits()
        settings = {name: value for name, value in asdict(self).items() if name not in UNRECORDED}
        paths = {"data": train, "validation": validation, "test": tests[0] if tests else None}
        return {
            "kind": self.kind,
            **settings,
            **{name: path if path is None or path.startswith(HUB) else absolute(path) for name, path in paths.items()},
            "fingerprints": {name: self.fingerprint(data, name)[:DIGITS] for name, data in splits.known.items()},
            "items": {name: len(data) for name, data in splits.known.items()},
        }

    def again(self, split: str = "test", labels: Sequence[str] = ()) -> D:
        """The data of a split as its record describes them; `labels` are those of the run's model.

        A record may come from anywhere. So its paths are opened only where it has a fingerprint to check them by, and
        they are files or directories; nothing is fetched. Raises UserError or FileNotFoundError.
        """
        expected = self.recorded.get(split)
        if expected is None:
            raise UserError(f"the model was trained without {split} data: name some with --data PATH")
        corpus = {"validation": self.validation, "test": self.test}.get(split)
        for path in filter(None, [corpus] if corpus else [self.data, self.validation, self.test]):
            if path.startswith(HUB):
                raise UserError(f"the run's data are {path}: nothing is fetched unasked; name them: --data {path}")
            self.check_exists(path)
        readings = [self] if corpus or self.data is None else self.readings()
        for source in readings:
            data = self.read_one(corpus, labels) if corpus else source.read().known.get(split)
            if data is not None and len(expected) >= DIGITS and self.fingerprint(data, split).startswith(expected):
                return data
        name = corpus or self.data or "the embedded corpus"
        raise UserError(
            f"{name}: the {split} data are not those of the run any more; to score on them as they are: --data {name}"
        )


@dataclass(frozen=True, kw_only=True)
class ClassSource(Source[D]):
    """Items that have one label each, called `names` where labels are written 0, 1, ...

    sample  training items that are used, drawn at random; None: all
    """

    of_every_label: ClassVar[bool] = True  # whether a sample has to have an item of each label

    names: tuple[str, ...] = ()
    sample: int | None = None

    def names_for(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Of labels that are written as numbers, where a model knows `labels`."""
        return self.names or (() if any(label.isdecimal() for label in labels) else tuple(labels))

    def read(self) -> SplitData[D]:
        """Raises UserError where the sample lacks what a model could not be trained without."""
        splits = super().read()
        if self.sample is None:
            return splits
        drawn = splits.sampled(self.sample, self.seed)
        lost = sorted({*splits.train.labels}.difference(drawn.train.labels))
        if lost and (self.of_every_label or len({*drawn.train.labels}) < 2):
            more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
            raise UserError(f"items={self.sample:,}: none of them has the label {lost[0]!r}{more}: take more items")
        return drawn

    def check_training(self, train: D) -> None:
        check_labels(train.labels, train.file or self.data)


def check_labels(labels: Sequence[str], place: object) -> None:
    """Raises UserError for labels of which a classifier has nothing to learn."""
    if len(set(labels)) < 2:
        raise UserError(f"{place}: one label only, {labels[0]!r}: there is nothing to tell apart")
