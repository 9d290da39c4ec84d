"""Functions that several readers use: lines of text files, the splits of a directory, and held-out validation data."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from manyheads.data.readers.compressed import open_decompressed
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

PATHS = ("data", "validation", "test")  # settings with the paths of a run's data
LOG_SECONDS = 5.0  # seconds between two log lines of a phase that reads much data
# pair of strings: the fault of an item, and a hint on how to correct it
UTF8 = (
    "invalid UTF-8",
    "convert the file from its encoding, such as WINDOWS-1252 or GB18030: `iconv -f ENCODING -t UTF-8`",
)
MAX_LINE_BYTES = 2**26  # maximum number of bytes in a line, because a whole line is read into memory
# maximum number of characters in a text: tokenizing ten million takes a minute and more than a gigabyte of memory
LONGEST = 1_000_000
SURROGATE = ("contains half a character (a lone surrogate)", "encode it as UTF-8")


# By default, 5% of the training items become validation data, but at least 50 items, and at most a fifth of all items.
# A warning reports validation data with fewer items, or with a larger fraction of the items.
HELD_OUT_FRACTION = 0.05
MIN_HELD_OUT = 50
LARGE_FRACTION = 0.2
FREQUENT, MIN_OF_LABEL = 20, 5  # A validation split should have 5 items of each label with 20 items or more.
MAX_STRATIFIED = 0.2  # maximum fraction of all items that are held out to have `MIN_OF_LABEL` items of each label


class Splits(NamedTuple):
    """Paths of the training, validation and test data.

    Each path is a string that a reader accepts: a file, a directory, or several files joined by commas.
    """

    train: str | None
    validation: str | None
    test: list[str]

    def with_overrides(self, validation: str | None, test: str | None) -> Splits:
        """Return these splits, with the paths that the user has given in place of the detected paths."""
        return Splits(self.train, validation or self.validation, [test] if test else self.test)

    @property
    def by_role(self) -> dict[str, str | None]:
        """Mapping from "train", "validation" and "test" to its path. Only the first test corpus is included."""
        return {"train": self.train, "validation": self.validation, "test": self.test[0] if self.test else None}

    def mapped(self, path: Callable[[str], str]) -> Splits:
        """Apply the function `path` to the path of each split, and return the result."""
        first = [None if found is None else path(found) for found in (self.train, self.validation)]
        return Splits(first[0], first[1], [path(found) for found in self.test])


class Data(Protocol):
    """Protocol of the data sets that readers return.

    skips  number of skipped items, by file and reason
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def skips(self) -> dict[str, int]: ...

    def __len__(self) -> int: ...

    def subset(self, chosen: Sequence[int] | NDArray[np.int64], /) -> Self: ...


D = TypeVar("D", bound=Data)
T = TypeVar("T")


class SplitData(NamedTuple, Generic[D]):
    """Training, validation and test data. `held_out` is the number of training items that became validation data."""

    train: D
    validation: D
    test: D | None
    held_out: int = 0

    @property
    def known(self) -> dict[str, D]:
        """Mapping from split name to data, for the splits that exist."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: data for name, data in splits.items() if data is not None}

    def sampled(self, items: int, seed: int) -> SplitData[D]:
        """Return these splits with a random sample of `items` training items.

        If there are at most `items` training items, all of them remain.
        """
        if items > len(self.train):
            logger.info(f"items={items:,}: using all {len(self.train):,} training items")
        if items >= len(self.train):
            return self
        return self._replace(train=self.train.subset(sorted(Random(seed).sample(range(len(self.train)), items))))


def logged(items: Iterable[T], what: str) -> Iterator[T]:
    """Yield the items, and log the number of items so far every `LOG_SECONDS` seconds.

    what  beginning of the log line, such as "reading train.txt"
    """
    due = time.monotonic() + LOG_SECONDS
    for number, item in enumerate(items, 1):
        yield item
        if not number % 100 and time.monotonic() > due:
            logger.info(f"{what}: {number:,} so far")
            due = time.monotonic() + LOG_SECONDS


def only_test(data: str | Path, tests: Sequence[str]) -> str | None:
    """Return the test corpus of a directory, or None if there is none. Raises UserError if there are several."""
    if len(tests) > 1:
        raise UserError(f"{data}: found several test files ({', '.join(tests)}); select one of them")
    return tests[0] if tests else None


def parts_of(corpus: str) -> list[Path]:
    """Split the name of a corpus into its files or directories: one path, or several joined by commas."""
    try:
        whole = "," not in corpus or Path(corpus).exists()
    except OSError:  # This happens, for example, if the name is too long for a path.
        whole = False
    return [Path(corpus)] if whole else [Path(part.strip()) for part in corpus.split(",")]


def folder_of(data: str) -> Path | None:
    """Return `data` as a path if it is exactly one directory; otherwise return None."""
    parts = parts_of(data)
    return parts[0] if len(parts) == 1 and parts[0].is_dir() else None


def same_place(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and Path(one) == Path(other)


def working_directory(run: Path) -> str:
    """Return the working directory relative to a run directory. Records of a run contain no absolute path."""
    return os.path.relpath(os.getcwd(), os.path.realpath(run))


def from_here(corpus: str, run: Path, directory: str) -> str:
    """Return the name of a run's corpus, so that it is valid in the working directory of this process.

    The name may be one path, a prefix, or several paths ("a.en,b.de"). A path that does not exist there, because the
    run was moved, is returned unchanged.

    directory  path in which the name was valid, relative to the run directory (`working_directory`)
    """
    start = Path(os.path.realpath(run), directory)

    def moved(part: Path) -> str:
        place = Path(os.path.relpath(start / part))
        found = not part.is_absolute() and any(place.parent.glob(f"{glob.escape(place.name)}*"))
        return str(place if found else part)

    whole = "," not in corpus or (start / corpus).exists()
    return ",".join(moved(Path(part.strip())) for part in ([corpus] if whole else corpus.split(",")))


def hold_out(
    data: D, keys: Sequence[str], labels: Sequence[Iterable[str]] | None = None, *, fraction: float | None = None,
    by_hash: bool = False, strata: Sequence[Iterable[str]] | None = None, what: str,
) -> tuple[D, D]:  # fmt: skip
    """Hold out validation data, and return the training data and the validation data.

    The items with the lowest hashes of their keys are held out. Items with equal keys are in the same part.

    data      data set to split
    keys      key of each item, such as its text
    labels    labels of each item. If a label would be missing in the training data, the held-out items with this label
              return to the training data, with all items of equal key
    fraction  fraction of the items in the validation data, met as closely as items with equal keys allow. If None, it
              is the default of `held_out_fraction`, and more if a label would have fewer than `MIN_OF_LABEL` items
    by_hash   if True, hold out the keys whose hash is in the lowest `fraction` of the range of hashes. The part of an
              item then does not depend on the other items
    strata    labels of each item. If the validation data would have fewer than `MIN_OF_LABEL` items of a label with at
              least `FREQUENT` items, or less than half of its share, the data are split by label instead. If None,
              the data are never split by label
    what      noun for a key in the error message

    Raises UserError if all keys are equal, or if each label has too few items.
    """
    hashes, minimum = hashes_of(keys), 0 if fraction is not None else MIN_OF_LABEL
    fraction = held_out_fraction(fraction, len(keys))
    select = lowest_fraction_mask if by_hash else closest_fraction_mask
    kept, held = _sides(select(hashes, fraction, what=what))
    if strata is not None and (lack := _lack_of_labels(strata, held, fraction, minimum)):
        logger.info(f"stratified the validation data by label, because a split by hash would have {lack}")
        kept, held = _sides(_stratified_mask(hashes, strata, fraction, minimum))
        labels = strata
    if labels is not None:
        known = {label for row in kept for label in labels[row]}
        unknown = {keys[row] for row in held if not known.issuperset(labels[row])}
        back = np.array([keys[row] in unknown for row in held], bool)
        if back.all():
            raise UserError("too few items of each label to hold out validation data; give validation data")
        kept, held = np.sort(np.concatenate([kept, held[back]])), held[~back]
    return parted(data, kept, held)


def parted(data: D, kept: Sequence[int] | NDArray[np.int64], held: Sequence[int] | NDArray[np.int64]) -> tuple[D, D]:
    """Return the training data and the validation data, given their indices.

    Skipped items are counted only in the training data; otherwise the report would list them twice.
    """
    return data.subset(kept), replace(data.subset(held), skips={})


def held_out_fraction(fraction: float | None, items: int) -> float:
    """Return the fraction of `items` items that is held out: `fraction`, or the default fraction if it is None."""
    return max(HELD_OUT_FRACTION, min(MIN_HELD_OUT / max(items, 1), LARGE_FRACTION)) if fraction is None else fraction


def held_out(
    keys: Iterable[str], fraction: float = 0.05, *, what: str = "item"
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split keys into two parts. Return the indices of the training items and the indices of the held-out items.

    Only the hash of the key decides, so equal keys are in the same part, independent of the other items and of
    their order. At least one key is held out, and at least one is not.
    """
    return _sides(lowest_fraction_mask(hashes_of(keys), fraction, what=what))


def _sides(held: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.flatnonzero(~held), np.flatnonzero(held)


def hashes_of(keys: Iterable[str]) -> NDArray[np.uint64]:
    """Return the 64-bit hashes of N texts, (N,)."""
    return np.fromiter(map(hash_of, keys), np.uint64)


def hash_of(key: str) -> int:
    """Return the 64-bit hash of a text. Collisions are negligible for millions of texts."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())


def _lack_of_labels(labels: Sequence[Iterable[str]], held: NDArray[np.int64], fraction: float, minimum: int) -> str:
    """Return a description of the first frequent label with too few held-out items, or "" if every label has enough."""
    of_held = Counter(label for row in held for label in {*labels[row]})
    for label, count in sorted(Counter(label for names in labels for label in {*names}).items()):
        if count >= FREQUENT and of_held[label] < max(minimum, fraction * count / 2):
            return f"{of_held[label]} of the {count:,} items with the label {label!r}"
    return ""


def _stratified_mask(
    hashes: NDArray[np.uint64], labels: Sequence[Iterable[str]], fraction: float, minimum: int
) -> NDArray[np.bool_]:
    """Return a boolean mask (N,) of `fraction` of the items of each label, selected in the order of their hashes.

    Of a frequent label, at least `minimum` items are selected, unless this would be more than a fifth of all items.
    Items with equal hashes are selected together. If an item has several labels, its rarest label decides.
    """
    rows: dict[str, list[int]] = {}
    for row, names in enumerate(labels):
        for name in {*names} or {""}:
            rows.setdefault(name, []).append(row)
    shares = {name: fraction * len(of) for name, of in rows.items()}
    counts = {name: int(share) for name, share in shares.items()}
    missing = max(0, round(fraction * len(hashes)) - sum(counts.values()))
    for name in sorted(shares, key=lambda name: counts[name] - shares[name])[:missing]:
        counts[name] += 1
    raised = {name: max(count, minimum * (len(rows[name]) >= FREQUENT)) for name, count in counts.items()}
    counts = raised if sum(raised.values()) <= max(fraction, MAX_STRATIFIED) * len(hashes) else counts
    distinct, group_of = np.unique(hashes, return_inverse=True)
    selected = np.zeros(len(distinct), bool)
    for name in sorted(rows, key=lambda name: (len(rows[name]), name)):
        groups, sizes = np.unique(group_of[rows[name]], return_counts=True)
        left = counts[name] - int(sizes[selected[groups]].sum())
        for group, size in zip(groups.tolist(), sizes.tolist(), strict=True):
            if size <= left and not selected[group]:
                selected[group], left = True, left - size
    mask: NDArray[np.bool_] = selected[group_of]
    return mask


def lowest_fraction_mask(hashes: NDArray[np.uint64], fraction: float, *, what: str) -> NDArray[np.bool_]:
    """Return a boolean mask (N,) of the 64-bit hashes in the lowest `fraction` of the range of hashes.

    The lowest hash is always selected, the highest never. Raises UserError if all hashes are equal.
    """
    assert 0 < fraction < 1
    lowest, highest = (int(hashes.min()), int(hashes.max())) if len(hashes) else (0, 0)
    if lowest == highest:
        raise UserError(f"one distinct {what} cannot be split; give validation data")
    return hashes < np.uint64(min(max(int(fraction * 2**64), lowest + 1), highest))


def closest_fraction_mask(hashes: NDArray[np.uint64], fraction: float, *, what: str) -> NDArray[np.bool_]:
    """Return a boolean mask (N,) of `fraction` of the items, selected in the order of their 64-bit hashes.

    Items with equal hashes are selected together. At least one hash is selected, and at least one is not. Raises
    UserError if all hashes are equal.
    """
    distinct, group_of, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    if len(distinct) < 2:
        raise UserError(f"one distinct {what} cannot be split; give validation data")
    left, selected = round(fraction * len(hashes)), np.zeros(len(distinct), bool)
    for group, count in enumerate(counts.tolist()):
        if count <= left:
            selected[group], left = True, left - count
        if not left:
            break
    if selected.all():
        selected[-1] = False
    elif not selected.any():
        selected[counts.argmin()] = True
    mask: NDArray[np.bool_] = selected[group_of]
    return mask


def lines(file: Path) -> Iterator[str | None]:
    """Yield the lines of a UTF-8 text file; None in place of a line that is not valid UTF-8.

    Only \\n and \\r\\n end a line: str.splitlines also splits at U+2028, U+000B and U+0085, so its line numbers
    would differ from those in an editor. Raises UserError for a line that exceeds `MAX_LINE_BYTES` bytes, and for a
    damaged compressed file.
    """
    for line in _lines(file):
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            yield None


def count_lines(file: Path) -> int:
    """Return the number of lines in a text file, as counted by `lines`. Raises the same errors as `lines`."""
    return sum(1 for _ in _lines(file))


def _lines(file: Path) -> Iterator[bytes]:
    with open_decompressed(file) as content:
        number = 0
        while line := content.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if len(line) > MAX_LINE_BYTES:
                raise UserError(
                    f"{file}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes; split it into several lines"
                )
            yield line


def lines_of(file: Path) -> list[str | None]:
    """Return all lines of a text file as a list; for an empty file, one empty line."""
    return list(lines(file)) or [""]


def lone_surrogate(text: str) -> int | None:
    """Find the first lone surrogate in a text. Return its position, counted from 1; None if there is none.

    JSON may contain lone surrogates, and command-line arguments that are not UTF-8 are decoded to them, but no
    tokenizer accepts them.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start + 1
    return None
