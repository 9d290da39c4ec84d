"""Names of the queries and keys of an attention map: the tokens of a text, or the patches of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

SPECIAL = -1  # word index that marks special tokens and padding


@dataclass(frozen=True)
class Side:
    """Names of the queries, or of the keys, of an attention map. The queries and the keys are the two sides of a map.

    tokens  displayed names
    words   index of the word that each token belongs to, ascending; SPECIAL for none
    grid    number of rows and columns of image patches, for an image; the patches are the last tokens, row by row. None
            for a text
    cover   fraction of the image that the patches cover, down and across; above 1 if they extend beyond it
    steps   number of steps of each position in a Universal Transformer with halting, otherwise None
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
        """Return token names for an attention map that are just the token indices."""
        return cls(tuple(map(str, range(count))), tuple(range(count)))

    @classmethod
    def patches(
        cls, grid: tuple[int, int], before: Sequence[str] = (), cover: tuple[float, float] = (1.0, 1.0)
    ) -> Side:
        """Return names for image patches, by row and column, after the tokens `before` (such as the class token)."""
        rows, columns = grid
        names = (*before, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
        return cls(names, (*[SPECIAL] * len(before), *range(rows * columns)), grid, cover)

    def padded(self, size: int) -> Side:
        """Return a copy with the names of padding tokens added, up to `size` tokens."""
        missing = size - len(self)
        assert missing >= 0, f"a map of {size} tokens, but {len(self)} names"
        return Side((*self.tokens, *["[padding]"] * missing), (*self.words, *[SPECIAL] * missing), self.grid)

    def part(self, kept: Sequence[int]) -> Side:
        """Return a copy with only the tokens at the given indices."""
        steps = None if self.steps is None else tuple(self.steps[at] for at in kept)
        return Side(tuple(self.tokens[at] for at in kept), tuple(self.words[at] for at in kept), steps=steps)

    def _runs(self) -> list[list[int]]:
        """Return the token indices of each word. A special token counts as one word."""
        runs: list[list[int]] = []
        for at, word in enumerate(self.words):
            if runs and word != SPECIAL and word == self.words[at - 1]:
                runs[-1].append(at)
            else:
                runs.append([at])
        return runs

    def groups(self) -> NDArray[np.float32]:
        """Return a matrix (words, tokens) with 1 if the token belongs to the word, otherwise 0."""
        runs = self._runs()
        groups = np.zeros((len(runs), len(self)), dtype=np.float32)
        for row, run in enumerate(runs):
            groups[row, run] = 1
        return groups

    def merged(self) -> Side:
        """Return names of words in place of names of tokens. A word has halted when all of its tokens have halted."""
        runs = self._runs()
        tokens = tuple("".join(self.tokens[at] for at in run) for run in runs)
        words = tuple(self.words[run[0]] for run in runs)
        steps = None if self.steps is None else tuple(max(self.steps[at] for at in run) for run in runs)
        return replace(self, tokens=tokens, words=words, steps=steps)
