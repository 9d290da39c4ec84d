"""Data source of digit strings, on which a model learns an algorithm (copy, reverse or addition)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.source import Items, Source
from manyheads.errors import UserError
from papers.universal.digit_strings import Algorithm, algorithmic_pairs

MAX_CHARACTERS = 10**8  # maximum total number of characters in all strings


@dataclass(frozen=True, kw_only=True)
class DigitSource(Source[Pairs]):
    """Data source of digit strings for one algorithm.

    size       number of training strings
    longest    maximum length of a training string, in characters
    validated  number of validation strings
    lengths    lengths of the test strings, in characters
    tested     number of test strings for each length

    The test strings of all lengths are in one data set; `by_length` groups them.
    """

    kind = "digits"
    unit = "strings"

    algorithm: Algorithm = "copy"
    longest: Items = 40
    lengths: tuple[Items, ...] = (40,)
    size: Items = 40_000
    validated: Items = 200
    tested: Items = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        characters = (self.size + self.validated) * self.longest + self.tested * sum(self.lengths)
        if characters > MAX_CHARACTERS:
            raise UserError(
                f"expected at most {MAX_CHARACTERS:,} characters in all strings together, found up to {characters:,}"
            )

    def report(self, splits: SplitData[Pairs]) -> str:
        return f"{len(splits.train):,} strings"

    def embedded(self) -> SplitData[Pairs]:
        def generate(split: str, count: int) -> Pairs:
            return algorithmic_pairs(self.algorithm, count, self.longest, seed=self.seed, split=split)

        return SplitData(generate("train", self.size), generate("validation", self.validated), self.tests())

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
    """Group pairs of input and output by the length of the input.

    Pairs with inputs of equal length must be adjacent.
    """
    groups = groupby(range(len(pairs)), key=lambda row: len(pairs.sources[row]))
    return {length: pairs.subset(list(rows)) for length, rows in groups}
