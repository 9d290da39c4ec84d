"""What the readers of all formats share: lines of text, the splits of a directory, and data that are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

VALIDATION = ("val", "valid", "validation", "dev")
UTF8 = ("invalid UTF-8", "convert the file, for example with `iconv -f ISO-8859-1 -t UTF-8`")  # fault and remedy
SURROGATE = ("has half a character (a lone surrogate)", "write it as UTF-8")


class Splits(NamedTuple):
    """What each split is read from: a file, or a corpus as `read_parallel` takes it."""

    train: str | None
    validation: str | None
    test: list[str]


class Skipping(Protocol):
    """What may have been read in part."""

    @property
    def skips(self) -> dict[str, int]:
        """Why items were left out: the reason, and how many."""
        ...


class Data(Skipping, Protocol):
    """What a reader yields."""

    def __len__(self) -> int: ...

    def subset(self, chosen: Sequence[int], /) -> Self: ...


D = TypeVar("D", bound=Data)


class SplitData(NamedTuple, Generic[D]):
    """What was read of each split; `held_out` items of the training data are the validation data."""

    train: D
    validation: D
    test: D | None
    test_paths: tuple[str, ...] = ()
    held_out: int = 0

    @property
    def known(self) -> dict[str, D]:
        """Those that there are, by name."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: data for name, data in splits.items() if data is not None}

    def scored(self, split: str) -> D | None:
        """The validation data, or the test data, by that name."""
        return self.validation if split == "validation" else self.test

    def sampled(self, items: int | None, seed: int) -> SplitData[D]:
        """With so many of the training items, drawn at random; with all where there are no more, or for None."""
        if items is None or items >= len(self.train):
            return self
        return self._replace(train=self.train.subset(sorted(Random(seed).sample(range(len(self.train)), items))))


def splits_among(folder: Path, names: Iterable[str]) -> Splits:
    """The splits among the corpora of a directory, by how their names begin: `train.txt`, `dev-v1.1.json`, `test_b`.

    Raises ValueError where several could be the training data, or the validation data.
    """
    names = sorted(names)
    train = [n for n in names if is_split(n, ("train",))]
    held = [n for n in names if is_split(n, VALIDATION)]
    for role, several in (("training", train), ("validation", held)):
        if len(several) > 1:
            raise ValueError(f"{folder}: several {role} corpora ({', '.join(several)}); name one: data=DIR/NAME")
    first_train, first_held = (str(folder / several[0]) if several else None for several in (train, held))
    return Splits(first_train, first_held, [str(folder / n) for n in names if n.startswith("test")])


def find_files(
    data: str | Path, suffixes: tuple[str, ...], *, validation: str | None = None, test: str | None = None
) -> Splits:
    """The files behind `data`: those of a directory's splits, or one file as the training data.

    `validation` and `test` name files that take precedence over those found. Raises FileNotFoundError.
    """
    found = Splits(str(data), None, [])
    folder = Path(data)
    if folder.is_dir():
        names = [p.name for p in folder.iterdir() if p.is_file() and p.suffix in suffixes]
        found = splits_among(folder, names)
        if found == (None, None, []):
            there = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
            raise FileNotFoundError(
                f"{folder}: no data there; expected {_train_file(suffixes)}, and val, test likewise; found {there}"
            )
    for file in filter(None, (None if folder.is_dir() else str(data), validation, test)):
        if not Path(file).is_file():
            raise FileNotFoundError(f"{file}: no such file; give an existing file or a directory with train, val, test")
    return Splits(found.train, validation or found.validation, [test] if test else found.test)


def only_test(data: str | Path, tests: Sequence[str]) -> str | None:
    """The test data among those found. Raises ValueError where there are several."""
    if len(tests) > 1:
        raise ValueError(f"{data}: several test files ({', '.join(tests)}); name one of them")
    return tests[0] if tests else None


def test_among(data: str, find: Callable[[str], Splits]) -> str:
    """The test data that the user names: of a directory those that `find` finds there."""
    found = only_test(data, find(data).test) if Path(data).is_dir() else data
    if found is None:
        raise ValueError(f"{data}: no test data there; name the file itself")
    return found


def read_files(
    data: str | Path, suffixes: tuple[str, ...], read: Callable[[str], D], keys: Callable[[D], Sequence[str]], *,
    what: str, labels: Callable[[D], Sequence[Iterable[str]]] | None = None,
    validation: str | None = None, test: str | None = None,
) -> SplitData[D]:  # fmt: skip
    """What `read` makes of the files that `find_files` finds.

    Without validation data, 5% of the training data are held out by a hash of their `keys`, each of which is a `what`,
    but none of which training knows no other item with one of its `labels`.
    Raises FileNotFoundError, and ValueError where there are several test files, or one key only.
    """
    splits = find_files(data, suffixes, validation=validation, test=test)
    if splits.train is None:
        raise FileNotFoundError(f"{data}: no training data; expected {_train_file(suffixes)}")
    test = only_test(data, splits.test)
    train = read(splits.train)
    tested = None if test is None else read(test)
    paths = tuple(str(Path(path).absolute()) for path in splits.test)
    if splits.validation is not None:
        return SplitData(train, read(splits.validation), tested, paths)
    try:
        kept, held = held_out(keys(train), what=what)
        if labels is not None:
            kept, held = _with_all_labels(kept, held, keys(train), labels(train))
    except ValueError as error:
        raise ValueError(f"{splits.train}: {error}") from None
    return SplitData(train.subset(kept), train.subset(held), tested, paths, len(held))


def _train_file(suffixes: tuple[str, ...]) -> str:
    others = ", ".join(suffixes[1:])
    return f"train{suffixes[0]}" + f" (or {others})" * bool(others)


def _with_all_labels(
    kept: list[int], held: list[int], keys: Sequence[str], labels: Sequence[Iterable[str]]
) -> tuple[list[int], list[int]]:
    """Puts back what was held out with a label that is nowhere else, and all copies of it."""
    known = {label for row in kept for label in labels[row]}
    back = {keys[row] for row in held if not known.issuperset(labels[row])}
    still = [row for row in held if keys[row] not in back]
    if not still:
        raise ValueError("too few items of each label to hold some out; give validation data")
    return sorted([*kept, *(row for row in held if keys[row] in back)]), still


def held_out(keys: Sequence[str], fraction: float = 0.05, *, what: str = "item") -> tuple[list[int], list[int]]:
    """(kept, held out) rows: decided by a hash of the key alone, so all copies of a key fall on one side, whatever
    else the corpus holds and in whatever order. At least one key is held out, and one kept."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction to hold out is {fraction}; expected a number between 0 and 1")
    hashes = [int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) for key in keys]
    lowest, highest = min(hashes, default=0), max(hashes, default=0)
    if lowest == highest:
        raise ValueError(f"one distinct {what} cannot be split; give validation data")
    limit = min(max(int(fraction * 2**64), lowest + 1), highest)
    kept = [i for i, h in enumerate(hashes) if h >= limit]
    return kept, [i for i, h in enumerate(hashes) if h < limit]


def lines(file: Path) -> Iterator[str | None]:
    """Lines of a UTF-8 file, one by one, None where one is invalid. Only \\n and \\r\\n end a line: str.splitlines also
    splits at U+2028, \\x0b, \\x85 and would count lines as no editor does."""
    with file.open("rb") as content:
        for number, line in enumerate(content):
            if number == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
            except UnicodeDecodeError:
                yield None


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
