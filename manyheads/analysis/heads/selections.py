"""Heads as pickers: of all words, the one that a head attends to most is its answer; how often is it the right one?

What the analyses of dependencies and of coreference share (Clark et al. 2019, section 4): two directions, accuracy by
group, the best head of each with its interval, and simple baselines beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads.errors import UserError

NONE = -1  # picked where a head looks at no candidate
ALL = "all"  # the group of every item
Z = 1.959964  # of a normal distribution: 95% lie within


class Hits(NamedTuple):
    """Of the items of one text: which heads pick right, (N, 2, L, H); the group of each; which baselines do, (N,).

    cluster  the number of the text (sentence, document) whose items depend on one another
    """

    right: NDArray[np.bool_]
    groups: list[str]
    baselines: dict[str, NDArray[np.bool_]]
    cluster: int


class Best(NamedTuple):
    """The head that answers most items of a group right, of all layers, heads and directions.

    layer, head  counted from 0, as `record` counts
    low, high    where the accuracy lies with 95% confidence
    held_out     the accuracy where the head is chosen on one half of the texts and scored on the other, so that the
                 best of many heads does not look better than it is
    baseline     the name of the best one, and `base` its accuracy; `baselines` has all of them
    """

    group: str
    items: int
    layer: int
    head: int
    direction: str
    accuracy: float
    low: float
    high: float
    held_out: float
    baseline: str
    base: float
    baselines: dict[str, float]


@dataclass(frozen=True)
class Selections:
    """All items (N of them), from many texts.

    layers      names, L of them
    directions  what is meant by the first way (the word looks at the answer) and by the second (it is looked at)
    """

    right: NDArray[np.bool_]  # (N, 2, L, H)
    groups: NDArray[np.str_]
    clusters: NDArray[np.int64]
    baselines: dict[str, NDArray[np.bool_]]
    layers: tuple[str, ...]
    directions: tuple[str, str]

    @classmethod
    def of(cls, parts: Sequence[Hits], layers: Sequence[str], directions: tuple[str, str]) -> Selections:
        """Raises UserError where there is no item."""
        if not sum(len(part.groups) for part in parts):
            raise UserError("no item to score: expected texts with relations between words that the tokenizer keeps")
        sizes = [len(part.groups) for part in parts]
        return cls(
            np.concatenate([part.right for part in parts]),
            np.array([group for part in parts for group in part.groups]),
            np.repeat([part.cluster for part in parts], sizes),
            {name: np.concatenate([part.baselines[name] for part in parts]) for name in parts[0].baselines},
            tuple(layers),
            directions,
        )

    def __repr__(self) -> str:
        layers, heads = self.right.shape[2:]
        return f"Selections({len(self.groups):,} items of {len(set(self.groups))} groups, {layers} x {heads} heads)"

    def counts(self) -> dict[str, int]:
        """How many items each group has, the largest first."""
        names, counts = np.unique(self.groups, return_counts=True)
        return dict(sorted(zip(names.tolist(), counts.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0])))

    def accuracies(self, group: str = ALL) -> NDArray[np.float64]:
        """(2, L, H): by direction, layer and head."""
        accuracies: NDArray[np.float64] = self.right[self._rows(group)].mean(0)
        return accuracies

    def best(self, group: str = ALL) -> Best:
        rows = self._rows(group)
        right, clusters = self.right[rows], self.clusters[rows]
        direction, layer, head = (int(i) for i in np.unravel_index(right.mean(0).argmax(), right.shape[1:]))
        hits = right[:, direction, layer, head]
        low, high = interval(hits, clusters)
        baselines = {name: float(right_of[rows].mean()) for name, right_of in self.baselines.items()}
        baseline = max(baselines, key=lambda name: baselines[name])
        return Best(
            group, len(hits), layer, head, self.directions[direction], float(hits.mean()), low, high,
            _held_out(right, clusters), baseline, baselines[baseline], baselines,
        )  # fmt: skip

    def table(self, minimum: int = 1) -> list[Best]:
        """The best head for all items, then for each group of at least so many, the largest first."""
        return [self.best(), *(self.best(name) for name, count in self.counts().items() if count >= minimum)]

    def _rows(self, group: str) -> NDArray[np.bool_]:
        rows = np.full(len(self.groups), True) if group == ALL else self.groups == group
        if not rows.any():
            raise UserError(f"no item is called {group!r}; there are {', '.join([ALL, *self.counts()])}")
        return rows


def picks(maps: Tensor, candidates: Tensor) -> NDArray[np.int64]:
    """(2, L, H, W): the candidate that each word looks at most, and the one that looks at it most; NONE where it gets
    no attention. Of equal ones the first.

    maps        (L, H, W, W) between the words of a text
    candidates  (W, W), True where the second word may be the answer for the first
    """
    both = torch.stack([maps, maps.transpose(-1, -2)])
    most, at = both.masked_fill(~candidates, -1.0).max(-1)
    return at.masked_fill(most <= 0, NONE).numpy()


def interval(hits: NDArray[np.bool_], clusters: NDArray[np.int64]) -> tuple[float, float]:
    """Wilson's interval of a share at 95%, as wide as the texts make it.

    Words of one sentence are not independent: where texts differ more than chance would have them, the items count
    for as many fewer (Kish's design effect), never for more.
    """
    n, share = len(hits), float(hits.mean())
    _, text = np.unique(clusters, return_inverse=True)
    sums, sizes = np.bincount(text, hits), np.bincount(text)
    effective, texts = float(n), len(sizes)
    if 0 < share < 1 and texts > 1:
        between = np.square(sums - share * sizes).sum() * texts / (texts - 1) / n**2  # variance of a ratio
        effective = min(n, share * (1 - share) / between) if between else n
    middle = (share + Z**2 / (2 * effective)) / (1 + Z**2 / effective)
    half = Z / (1 + Z**2 / effective) * sqrt(share * (1 - share) / effective + Z**2 / (4 * effective**2))
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def _held_out(right: NDArray[np.bool_], clusters: NDArray[np.int64]) -> float:
    """right (N, 2, L, H): every second text is scored by the head that is best on the others."""
    _, text = np.unique(clusters, return_inverse=True)
    flat, odd = right.reshape(len(right), -1), text % 2 == 1
    if odd.all() or not odd.any():
        return float("nan")
    return float(sum(flat[half, flat[~half].mean(0).argmax()].sum() for half in (odd, ~odd)) / len(flat))
