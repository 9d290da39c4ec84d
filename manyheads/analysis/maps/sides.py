"""What the queries and the keys of a map stand for: tokens of a text, or patches of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

SPECIAL = -1  # the word of a token that belongs to none: [CLS], a class token, padding


@dataclass(frozen=True)
class Side:
    """One of the two sides of a map.

    tokens  as they are shown
    words   which word each is part of, ascending; SPECIAL for none
    grid    rows and columns of the patches that the last tokens stand for, row by row; None where there is no image
    cover   share of the image, down and across, that the patches cover; above 1 where they reach beyond it
    steps   how many each position took, in a Universal Transformer whose positions halt; else None
    """

    tokens: tuple[str, ...]
    words: tuple[int, ...]
    grid: tuple[int, int] | None = None
    cover: tuple[float, float] = (1.0, 1.0)
    steps: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def positions(cls, count: int) -> Side:
        """Tokens that have no names."""
        return cls(tuple(map(str, range(count))), tuple(range(count)))

    @classmethod
    def patches(
        cls, grid: tuple[int, int], before: Sequence[str] = (), cover: tuple[float, float] = (1.0, 1.0)
    ) -> Side:
        """The patches of an image, called by row and column, behind other tokens."""
        rows, columns = grid
        names = (*before, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
        return cls(names, (*[SPECIAL] * len(before), *range(rows * columns)), grid, cover)

    def padded(self, size: int) -> Side:
        """With padding behind, up to `size` tokens."""
        missing = size - len(self)
        assert missing >= 0, f"a map of {size} tokens, but {len(self)} are named"
        return Side((*self.tokens, *["[padding]"] * missing), (*self.words, *[SPECIAL] * missing), self.grid)

    def part(self, kept: Sequence[int]) -> Side:
        """The tokens of a text at those places."""
        steps = None if self.steps is None else tuple(self.steps[at] for at in kept)
        return Side(tuple(self.tokens[at] for at in kept), tuple(self.words[at] for at in kept), steps=steps)

    def _runs(self) -> list[list[int]]:
        """The positions of each word's tokens; a special token is on its own."""
        runs: list[list[int]] = []
        for at, word in enumerate(self.words):
            if runs and word != SPECIAL and word == self.words[at - 1]:
                runs[-1].append(at)
            else:
                runs.append([at])
        return runs

    def groups(self) -> NDArray[np.float32]:
        """(words, tokens): 1 where a token is part of a word."""
        runs = self._runs()
        groups = np.zeros((len(runs), len(self)), dtype=np.float32)
        for row, run in enumerate(runs):
            groups[row, run] = 1
        return groups

    def merged(self) -> Side:
        """Words instead of tokens; a word has halted when all of its tokens have."""
        runs = self._runs()
        tokens = tuple("".join(self.tokens[at] for at in run) for run in runs)
        words = tuple(self.words[run[0]] for run in runs)
        steps = None if self.steps is None else tuple(max(self.steps[at] for at in run) for run in runs)
        return replace(self, tokens=tokens, words=words, steps=steps)
