"""Strings of digits for an algorithm as the data of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import get_args

from manyheads.data.embedded.digit_strings import Algorithm, algorithmic_pairs
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.source import MOST, Source
from manyheads.errors import UserError

MOST_CHARACTERS = 10**8  # of an algorithm's strings


@dataclass(frozen=True, kw_only=True)
class DigitSource(Source[Pairs]):
    """Strings of digits for an algorithm: `size` to train on, of up to `longest` characters, and `tested` of each of
    the `lengths`. The test data are one behind the other; `by_length` takes them apart."""

    kind = "digits"
    unit = "strings"

    algorithm: Algorithm = "copy"
    longest: int = 40
    lengths: tuple[int, ...] = (40,)
    size: int = 40_000
    validated: int = 200
    tested: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "lengths", tuple(self.lengths))
        if self.algorithm not in get_args(Algorithm):
            raise UserError(f"algorithm is {self.algorithm!r}: expected {get_args(Algorithm)}")
        if not all(isinstance(length, int) and 0 < length <= MOST for length in self.lengths):
            raise UserError(f"lengths are {self.lengths}: expected numbers of characters")
        if not isinstance(self.validated, int) or not 1 <= self.validated <= MOST:
            raise UserError(f"validated is {self.validated!r}: expected 1 to {MOST:,}")
        characters = (self.size + self.validated) * self.longest + self.tested * sum(self.lengths)
        if characters > MOST_CHARACTERS:
            raise UserError(f"the strings have up to {characters:,} characters: expected at most {MOST_CHARACTERS:,}")

    def report(self, splits: SplitData[Pairs]) -> str:
        return f"{len(splits.train):,} strings"

    def embedded(self) -> SplitData[Pairs]:
        def drawn(split: str, count: int) -> Pairs:
            return algorithmic_pairs(self.algorithm, count, self.longest, seed=self.seed, split=split)

        return SplitData(drawn("train", self.size), drawn("validation", self.validated), self.tests())

    def tests(self) -> Pairs:
        groups = [
            algorithmic_pairs(self.algorithm, self.tested, n, shortest=n, seed=self.seed, split=f"test {n}")
            for n in self.lengths
        ]
        return Pairs([text for group in groups for text in group.sources],
                     [text for group in groups for text in group.targets])  # fmt: skip

    def content(self, data: Pairs, split: str) -> list[str]:
        groups: Iterable[Pairs] = by_length(data).values() if split == "test" else [data]
        return [text for pairs in groups for text in (*pairs.sources, *pairs.targets)]


def by_length(pairs: Pairs) -> dict[int, Pairs]:
    """The pairs by the length of their source; those of a length stand together."""
    groups = groupby(range(len(pairs)), key=lambda row: len(pairs.sources[row]))
    return {length: pairs.subset(list(rows)) for length, rows in groups}
