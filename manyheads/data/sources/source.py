"""Base class of data sources. A data source is the location of a run's data, with the options for reading them.

source = LabeledSource(data="reviews", columns=Columns(text="body"))
splits = source.read()                            # train, validation, test
record["data"] = source.describe(splits)          # for result.json; `recorded.py` reads the data again
source.read_other("other.csv")                    # other data, read with the same options
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Generic, TypeVar

from manyheads.core.config import Range, check_fields
from manyheads.data.readers.compressed import format_suffix
from manyheads.data.readers.memory import IN_MEMORY, Rows
from manyheads.data.readers.roles import describe_roles, splits_among
from manyheads.data.readers.splits import Data, SplitData, Splits, folder_of, only_test, parts_of, same_place
from manyheads.data.readers.tables import TABLES
from manyheads.data.sources.holding_out import held_out_line
from manyheads.errors import UserError, shown
from manyheads.files import JsonObject, fingerprint

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Data)

Items = Annotated[int, Range(1, 10_000_000)]  # number of items in a built-in corpus
Share = Annotated[float, Range(0, 1, above=True, below=True)]  # fraction of the training data that is held out
HUB = "hub:"
# fields of `Source` that do not describe the data and are left out of result.json
UNRECORDED = ("whole", "cache_folder", "follows", "memory")
FINGERPRINT_DIGITS = 16  # number of hexadecimal digits in a recorded fingerprint


@dataclass(frozen=True, kw_only=True)
class Source(ABC, Generic[D]):
    """Location of data, and the options for reading them. There is a subclass for each kind of data.

    data              path of the training data, or of a directory of splits. If None, the built-in corpus is used,
                      which is generated from `seed`
    validation, test  paths of validation and test data, which replace those in the directory. With the built-in
                      corpus, only sources of texts and documents accept them
    skip_bad_lines    if True, leave out and count faulty items. If False, they are errors
    whole             if True, all of `data` is training data, even if files in it are named as validation or test
                      data. It is set for the data of result.json, which names the path of each split
    fraction          fraction of the training data that is held out if there are no validation data. By default, it is
                      5%, but at least 50 items if these are not more than 20% of the items
    memory            data in memory by split (`readers/memory.py`); `data` is then "data in memory"
    """

    kind: ClassVar[str]
    unit: ClassVar[str] = "items"  # noun for the items, used in messages about held-out or skipped items
    suffixes: ClassVar[tuple[str, ...]] = TABLES  # suffixes of the files that can be a corpus
    tuples: ClassVar[tuple[tuple[str, ...], ...]] = ()  # column names of tuples in memory, by their number of items
    extends_embedded: ClassVar[bool] = False  # True: `validation` and `test` may be given with the built-in corpus

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    skip_bad_lines: bool = False
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    whole: bool = False
    fraction: Share | None = None
    memory: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    # Subclasses override the following methods.

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> D:
        """Read all items of one corpus. Raises FileNotFoundError or a one-line UserError.

        labels  labels of the model that is evaluated on the corpus
        """
        raise UserError(f"{corpus}: data of the kind {self.kind} cannot be read from files")

    def embedded(self) -> SplitData[D]:
        """Return the training, validation and test data of the built-in corpus, which requires no download."""
        raise UserError(f"{self.kind} require data: data=PATH of a file, or of a directory with train, val, test")

    def hold_out(self, train: D) -> tuple[D, D]:
        """Split the training data into training data and validation data, by a hash of each item."""
        raise NotImplementedError(f"validation data cannot be held out from {self.kind}")

    def check_training(self, train: D) -> None:
        """Raise UserError if the data are not sufficient to train a model."""

    def fitting(self, data: D, train: D) -> D:
        """Return validation or test data in a form that is compatible with the training data.

        Raises UserError if they are incompatible, for example because of an unknown label.
        """
        return data

    def is_unlabeled(self, corpus: str | Rows) -> bool:
        """Return True if a corpus has no labels at all, like the test data of a competition."""
        return False

    def has_labels(self, data: D) -> bool:
        """Return True if an item of a data set has a label."""
        return True

    @abstractmethod
    def content(self, data: D, split: str) -> Iterable[str]:
        """Return the texts and the labels of a split. Its fingerprint is computed from them."""

    def fingerprint(self, data: D, split: str) -> str:
        """Return the fingerprint of a split: a hash of the texts and labels of all its items."""
        return fingerprint(self.content(data, split))

    @abstractmethod
    def report(self, splits: SplitData[D]) -> str:
        """Return a report on the training, validation and test data as text."""

    def held_out_line(self, splits: SplitData[D]) -> str:
        """Return a line that states which part of the training data was held out for validation."""
        return held_out_line(splits, self.unit)

    # The following methods find files. Some subclasses override them.

    @property
    def expected(self) -> str:
        """Description of the training data that a directory may contain, for error messages."""
        return f"train{self.suffixes[0]} (or {', '.join(self.suffixes[1:])})"

    def splits_in(self, folder: Path) -> Splits:
        """Return the paths of the training, validation and test data in a directory, found by the names of files."""
        files = (path for path in folder.iterdir() if path.is_file())
        return splits_among(folder, [path.name for path in files if format_suffix(path) in self.suffixes])

    def find(self, data: str) -> Splits:
        """Return the paths of the training, validation and test data.

        If `data` is not a directory, it is the training data. Raises UserError for a directory without data.
        """
        if (folder := folder_of(data)) is None:
            return Splits(data, None, [])
        splits = self.splits_in(folder)
        if splits == (None, None, []):
            raise FileNotFoundError(
                f"{folder}: found no data; expected {self.expected}, and val and test in the same format; "
                f"found {shown(sorted(path.name for path in folder.iterdir()), 8) or 'nothing'}"
            )
        return splits

    def files(self, corpus: str) -> list[Path]:
        """Return the paths of the files or directories that form a corpus.

        Raises FileNotFoundError if one does not exist, or is a pipe.
        """
        parts = parts_of(corpus)
        for part in parts:
            if not part.is_file() and not part.is_dir():
                fault = "neither a file nor a directory" if part.exists() else "no such file or directory"
                raise FileNotFoundError(f"{part}: {fault}; give an existing file, or a directory with {self.expected}")
        return parts

    def test_among(self, data: str | Path, tests: Sequence[str]) -> str | None:
        """Return the only test corpus of a directory; None if there is none. Raises UserError if there are several."""
        return only_test(data, tests)

    def test_in(self, data: str) -> str:
        """Return the corpus on which to evaluate: `data`, or its test corpus if `data` is a directory of splits."""
        found = self.find(data)
        if same_place(found.train, data):
            return data
        if (test := only_test(data, found.test)) is None:
            like = "" if found.train or found.validation else f" like {self.expected}"
            raise UserError(f"{data}: found no test data{like}; give the test file or folder itself")
        return test

    # The following methods are common to all sources.

    def splits(self) -> Splits:
        """Return the paths of the training, validation and test data; they are None for a built-in corpus."""
        if self.data == IN_MEMORY:
            if "train" not in self.memory:
                raise UserError(
                    "the run was trained on data in memory: give the same data again, as manyheads.train(resume=RUN, "
                    "train=...) does"
                )
            given = {"validation": self.validation, "test": self.test}
            others = (name if name in self.memory else path for name, path in given.items())
            return Splits("train", None, []).with_overrides(*others)
        found = Splits(self.data, None, [])
        if self.data is None and not self.extends_embedded:
            if named := [name for name in ("validation", "test") if vars(self)[name] is not None]:
                raise UserError(f"{' and '.join(named)} without data: give the training data, too, with data=PATH")
        elif self.data is not None and not self.whole:
            found = self.find(self.data)
            for corpus in (None if folder_of(self.data) else self.data, self.validation, self.test):
                if corpus is not None and not corpus.startswith(HUB):
                    self.files(corpus)
            if found.train is None:
                fault = f"{self.data}: found no training data; expected {self.expected}"
                if held := [Path(path) for path in (found.validation, *found.test) if path is not None]:
                    fault += f"; used as other splits: {', '.join(path.name for path in held)}"
                    fault += "; rename folders that are classes" if any(path.is_dir() for path in held) else ""
                raise FileNotFoundError(fault)
        return found.with_overrides(self.validation, self.test)

    def read(self) -> SplitData[D]:
        """Read all splits.

        If there are no validation data, a part of the training data is held out as validation data. Raises UserError.
        """
        path, validation_path, tests = self.splits()
        if path is None:
            return self.embedded()
        test_path = self.test_among(Path(path).parent, tests)
        train = self.read_one(self._corpus(path))
        self.check_training(train)
        test = None if test_path is None else self._read_test(self._corpus(test_path), train)
        if validation_path is not None:
            return SplitData(train, self.fitting(self.read_one(self._corpus(validation_path)), train), test)
        try:
            rest, validation = self.hold_out(train)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from None
        return SplitData(rest, validation, test, len(validation))

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

    def _corpus(self, name: str) -> str | Rows:
        """Return the rows of a split if it is in memory. The name of any other corpus is returned unchanged."""
        return Rows(name, self.memory[name], self.tuples) if name in self.memory else name

    def read_other(self, data: object, labels: Sequence[str] = ()) -> D:
        """Read the user's data for evaluation, in a file or in memory, with the same options as the training data."""
        if not isinstance(data, str | Path):
            return self.read_one(Rows("data", data, self.tuples), labels)
        return self.read_one(self.test_in(str(data)), labels)

    def summary_lines(self, splits: SplitData[D]) -> list[str]:
        """Return lines for the user: the files of each split, and the amount of held-out training data."""
        lines = [] if self.data in (None, IN_MEMORY) or self.data.startswith(HUB) else [self._roles(self.data)]
        return [*lines, self.held_out_line(splits)] if splits.held_out else lines

    def _roles(self, data: str) -> str:
        files = {role: self.files(corpus) for role, corpus in self.splits().by_role.items() if corpus}
        return describe_roles(folder_of(data), files, images=self.unit == "images")

    def describe(self, splits: SplitData[D]) -> JsonObject:
        """Return a description of the splits for result.json.

        It contains the options for reading the splits again, and their fingerprints for verification.
        """
        settings = {name: value for name, value in asdict(replace(self, memory={})).items() if name not in UNRECORDED}
        found = Splits(None, self.validation, []) if self.memory else self.splits()
        for split, path in found.by_role.items():
            settings["data" if split == "train" else split] = path
        return {
            "kind": self.kind,
            **settings,
            **({"in_memory": True} if self.memory else {}),
            "fingerprints": {
                name: self.fingerprint(data, name)[:FINGERPRINT_DIGITS] for name, data in splits.known.items()
            },
            "items": {name: len(data) for name, data in splits.known.items()},
        }
