"""What the readers of all formats share: lines of text, the splits of a directory, and data that are held out."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.compressed import opened
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

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

    def mapped(self, path: Callable[[str], str]) -> Splits:
        """With other paths in the place of those that were found."""
        first = [None if found is None else path(found) for found in (self.train, self.validation)]
        return Splits(first[0], first[1], [path(found) for found in self.test])


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


def only_test(data: str | Path, tests: Sequence[str]) -> str | None:
    """The test data among those of a directory. Raises UserError where there are several."""
    if len(tests) > 1:
        raise UserError(f"{data}: several test files ({', '.join(tests)}); name one of them")
    return tests[0] if tests else None


def parts_of(corpus: str) -> list[Path]:
    """The files or directories of a corpus: one, or several joined by commas."""
    try:
        whole = "," not in corpus or Path(corpus).exists()
    except OSError:  # too long for a name
        whole = False
    return [Path(corpus)] if whole else [Path(part.strip()) for part in corpus.split(",")]


def folder_of(data: str) -> Path | None:
    """The directory that is named."""
    parts = parts_of(data)
    return parts[0] if len(parts) == 1 and parts[0].is_dir() else None


def same_place(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and Path(one) == Path(other)


def absolute(corpus: str) -> str:
    """What finds a corpus from any directory: of a path, of several ("a.en,b.de"), or what their names begin with."""
    parts = parts_of(corpus)
    if len(parts) > 1 and all(part.exists() for part in parts):
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
