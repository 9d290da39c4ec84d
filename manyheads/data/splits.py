"""What the readers of all formats share: lines of text, the splits of a directory, and data that are held out."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from manyheads.data.compressed import opened
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

NUMBERED = re.compile(r"\d+")  # train-0.txt
PARTS = re.compile(r"-\d+-of-\d+")  # train-00000-of-00003.parquet
VALIDATION = ("val", "valid", "validation", "dev")
UTF8 = ("invalid UTF-8", "convert the file, for example with `iconv -f ISO-8859-1 -t UTF-8`")  # fault and remedy
LONGEST_LINE = 2**26  # bytes of a line, of any file: it is held in memory
LONGEST = 1_000_000  # characters of a text: tokenising ten million takes a minute and more than a gigabyte
SURROGATE = ("has half a character (a lone surrogate)", "write it as UTF-8")


class Splits(NamedTuple):
    """What each split is read from: a file, or a corpus in another form that its reader takes."""

    train: str | None
    validation: str | None
    test: list[str]

    def given(self, validation: str | None, test: str | None) -> Splits:
        """With those that the user has named in the place of what was found."""
        return Splits(self.train, validation or self.validation, [test] if test else self.test)


class Data(Protocol):
    """What a reader yields; `skips` says why items were left out: the reason, and how many."""

    @property
    def skips(self) -> dict[str, int]: ...

    def __len__(self) -> int: ...

    def subset(self, chosen: Sequence[int] | NDArray[np.int64], /) -> Self: ...


D = TypeVar("D", bound=Data)


class SplitData(NamedTuple, Generic[D]):
    """What was read of each split; `held_out` items of the training data are the validation data."""

    train: D
    validation: D
    test: D | None
    held_out: int = 0

    @property
    def known(self) -> dict[str, D]:
        """Those that there are, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: data for name, data in splits.items() if data is not None}

    def sampled(self, items: int | None, seed: int) -> SplitData[D]:
        """With so many of the training items, drawn at random; with all where there are no more, or for None."""
        if items is None or items >= len(self.train):
            if items is not None and items > len(self.train):
                logger.info(f"items={items:,}: all {len(self.train):,} training items are used")
            return self
        return self._replace(train=self.train.subset(sorted(Random(seed).sample(range(len(self.train)), items))))


def splits_among(folder: Path, names: Iterable[str], *, shards: re.Pattern[str] | None = None) -> Splits:
    """The splits among the corpora of a directory, by how their names begin: `train.txt`, `dev-v1.1.json`, `test_b`.

    shards  what the names of the files of one corpus may differ in, `NUMBERED` or `PARTS`; they are joined by commas

    Raises UserError where several could be the training data, or the validation data.
    """
    names = sorted(names)
    train = [name for name in names if is_split(name, ("train",))]
    validation = [name for name in names if is_split(name, VALIDATION)]
    if shards:
        train, validation = _joined(train, shards), _joined(validation, shards)
    for role, candidates in (("training", train), ("validation", validation)):
        if len(candidates) > 1:
            raise UserError(f"{folder}: several {role} corpora ({', '.join(candidates)}); name one: data=DIR/NAME")
    tests = [name for name in names if is_split(name, ("test",)) or re.match(r"test\d", name)]
    if shards:
        tests = _joined(tests, shards)

    def path(name: str) -> str:
        return ",".join(str(folder / part) for part in name.split(",")) if shards else str(folder / name)

    first = [path(names[0]) if names else None for names in (train, validation)]
    return Splits(first[0], first[1], [path(name) for name in tests])


def _joined(names: list[str], shards: re.Pattern[str]) -> list[str]:
    """Shards as one corpus, joined by commas: names that differ in nothing else."""
    alike = len({shards.sub("", name) for name in names}) == 1 and not any("," in name for name in names)
    return [",".join(names)] if alike else names


def only_test(data: str | Path, tests: Sequence[str]) -> str | None:
    """The test data among those of a directory. Raises UserError where there are several."""
    if len(tests) > 1:
        raise UserError(f"{data}: several test files ({', '.join(tests)}); name one of them")
    return tests[0] if tests else None


def absolute(corpus: str) -> str:
    """What finds a corpus from any directory: of a path, of several ("a.en,b.de"), or what their names begin with."""
    parts = [Path(part.strip()) for part in corpus.split(",")]
    if len(parts) > 1 and not Path(corpus).exists() and all(part.exists() for part in parts):
        return ",".join(str(part.absolute()) for part in parts)
    return str(Path(corpus).absolute())


def hold_out(
    data: D, keys: Sequence[str], labels: Sequence[Iterable[str]] | None = None, *, fraction: float = 0.05, what: str
) -> tuple[D, D]:
    """(kept, held out: 5%) by a hash of each item's key, which is a `what`: all copies fall on one side.

    labels  of each item. One that would be held out altogether is kept, with all copies of its items.
    """
    kept, held = held_out(keys, fraction, what=what)
    if labels is not None:
        known = {label for row in kept for label in labels[row]}
        unknown = {keys[row] for row in held if not known.issuperset(labels[row])}
        back = np.array([keys[row] in unknown for row in held], bool)
        if back.all():
            raise UserError("too few items of each label to hold some out; give validation data")
        kept, held = np.sort(np.concatenate([kept, held[back]])), held[~back]
    return data.subset(kept), data.subset(held)


def held_out(
    keys: Iterable[str], fraction: float = 0.05, *, what: str = "item"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(kept, held out) rows: decided by a hash of the key alone, so all copies of a key fall on one side, whatever
    else the corpus holds and in whatever order. At least one key is held out, and one kept."""
    held = below_share(hashes_of(keys), fraction, what=what)
    return np.flatnonzero(~held), np.flatnonzero(held)


def hashes_of(keys: Iterable[str]) -> NDArray[np.uint64]:
    """(N,) of each."""
    return np.fromiter(map(hash_of, keys), np.uint64)


def hash_of(key: str) -> int:
    """64 bits, by which millions are told apart."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())


def below_share(hashes: NDArray[np.uint64], fraction: float, *, what: str) -> NDArray[np.bool_]:
    """Which hashes (N,) of 64 bits are held out: those in the lowest `fraction` of all that can be, but at least one,
    and not the highest. Raises UserError where all are the same."""
    assert 0 < fraction < 1
    lowest, highest = (int(hashes.min()), int(hashes.max())) if len(hashes) else (0, 0)
    if lowest == highest:
        raise UserError(f"one distinct {what} cannot be split; give validation data")
    return hashes < np.uint64(min(max(int(fraction * 2**64), lowest + 1), highest))


def lines(file: Path) -> Iterator[str | None]:
    """Lines of a UTF-8 file, one by one, None where one is invalid. Only \\n and \\r\\n end a line: str.splitlines also
    splits at U+2028, U+000B, U+0085 and would count lines as no editor does. Raises UserError for a line that is too
    long to be held, and for a compressed file that is damaged."""
    for line in _lines(file):
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            yield None


def count_lines(file: Path) -> int:
    """How many `lines` gives; likewise raises UserError."""
    return sum(1 for _ in _lines(file))


def _lines(file: Path) -> Iterator[bytes]:
    with opened(file) as content:
        number = 0
        while line := content.readline(LONGEST_LINE + 1):
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) > LONGEST_LINE:
                raise UserError(f"{file}:{number}: a line of more than {LONGEST_LINE:,} bytes; cut it into several")
            yield line


def lines_of(file: Path) -> list[str | None]:
    """All lines of a file at once; an empty file is one empty line."""
    return list(lines(file)) or [""]


def half_character(text: str) -> int | None:
    """Where a text has a lone surrogate, counted from 1: JSON can spell it, and bytes that are no UTF-8 become one in
    an argument, but no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start + 1
    return None


def is_split(name: str, splits: tuple[str, ...]) -> bool:
    """Whether a name is that of a split, alone or followed by one of `._-`."""
    return any(name == s or (name.startswith(s) and name[len(s)] in "._-") for s in splits)
