"""Accuracy of attention heads as selectors: the word that a head attends to most is the head's answer.

The analyses of dependencies and of coreference (Clark et al. 2019, section 4) share this code. It computes the accuracy
for each group of words and for both directions of attention. For each group, it also finds the best head, with a
confidence interval, and the accuracy of simple baselines.
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

NONE = -1  # index for "no selection", if a head attends to none of the candidates
ALL = "all"  # name of the group that contains all words or mentions
Z = 1.959964  # quantile of the normal distribution for two-sided 95% confidence intervals


class Hits(NamedTuple):
    """Results for the N items (words or mentions) of one text.

    right      (N, 2, L, H) True for each correct selection, by item, direction, layer and head
    groups     group of each item, such as its syntactic relation
    baselines  (N,) True for each correct selection of a baseline, by the name of the baseline
    cluster    index of the text (sentence or document), because items of one text are not independent
    """

    right: NDArray[np.bool_]
    groups: list[str]
    baselines: dict[str, NDArray[np.bool_]]
    cluster: int


class Best(NamedTuple):
    """Attention head with the highest accuracy in a group of words, over all layers, heads and directions.

    layer, head  indices from 0, as in `record`
    low, high    95% confidence interval of the accuracy
    held_out     accuracy if the head is selected on half of the texts and scored on the other half, which removes the
                 bias of selecting the best of many heads
    baseline     name of the best baseline; `base` is its accuracy, `baselines` has the accuracy of all baselines
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
    """Selections of every attention head for all N items (words or mentions) of many texts.

    layers      names of the L layers
    directions  names of the two directions: the word attends to the answer, or the answer to the word
    """

    right: NDArray[np.bool_]  # true if the selection is correct, by item, direction, layer and head, (N, 2, L, H)
    groups: NDArray[np.str_]
    clusters: NDArray[np.int64]
    baselines: dict[str, NDArray[np.bool_]]
    layers: tuple[str, ...]
    directions: tuple[str, str]

    @classmethod
    def of(cls, parts: Sequence[Hits], layers: Sequence[str], directions: tuple[str, str]) -> Selections:
        """Join the results of several texts. Raise UserError if the texts contain no item."""
        if not sum(len(part.groups) for part in parts):
            raise UserError("no items to score: expected texts with relations between words that the tokenizer keeps")
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
        """Return the number of items in each group, in descending order."""
        names, counts = np.unique(self.groups, return_counts=True)
        return dict(sorted(zip(names.tolist(), counts.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0])))

    def accuracies(self, group: str = ALL) -> NDArray[np.float64]:
        """Return the accuracy of every attention head on one group, by direction, layer and head, (2, L, H)."""
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
        """Return the best attention head for all items, then for each group with at least `minimum` items.

        The groups are in descending order of size.
        """
        return [self.best(), *(self.best(name) for name, count in self.counts().items() if count >= minimum)]

    def _rows(self, group: str) -> NDArray[np.bool_]:
        rows = np.full(len(self.groups), True) if group == ALL else self.groups == group
        if not rows.any():
            raise UserError(f"no group {group!r}: valid are {', '.join([ALL, *self.counts()])}")
        return rows


def picks(maps: Tensor, candidates: Tensor) -> NDArray[np.int64]:
    """Return the word that each attention head selects for each word, in both directions, (2, L, H, W).

    In the first direction, the candidate to which the word attends most is selected. In the second direction, it is the
    candidate that attends to the word most. Of equal candidates, the first is selected. The result for a word without
    attention to any candidate is NONE.

    maps        attention between the words of a text, (L, H, W, W)
    candidates  (W, W), True if the second word may be the answer for the first
    """
    both = torch.stack([maps, maps.transpose(-1, -2)])
    most, at = both.masked_fill(~candidates, -1.0).max(-1)
    return at.masked_fill(most <= 0, NONE).numpy()


def interval(hits: NDArray[np.bool_], clusters: NDArray[np.int64]) -> tuple[float, float]:
    """Return Wilson's 95% confidence interval of an accuracy, widened for dependence within texts.

    The words of one sentence are not independent. If accuracies vary more between texts than chance explains, the
    effective number of items is reduced (Kish's design effect). It never exceeds the number of items.
    """
    n, share = len(hits), float(hits.mean())
    _, text = np.unique(clusters, return_inverse=True)
    sums, sizes = np.bincount(text, hits), np.bincount(text)
    effective, texts = float(n), len(sizes)
    if 0 < share < 1 and texts > 1:
        # variance of the accuracy, where the accuracy is a ratio of two sums over texts
        between = np.square(sums - share * sizes).sum() * texts / (texts - 1) / n**2
        effective = min(n, share * (1 - share) / between) if between else n
    middle = (share + Z**2 / (2 * effective)) / (1 + Z**2 / effective)
    half = Z / (1 + Z**2 / effective) * sqrt(share * (1 - share) / effective + Z**2 / (4 * effective**2))
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def _held_out(right: NDArray[np.bool_], clusters: NDArray[np.int64]) -> float:
    """Return the accuracy of the best head by cross-validation, for correct selections `right` (N, 2, L, H).

    Each half of the texts is scored with the head that is best on the other half.
    """
    _, text = np.unique(clusters, return_inverse=True)
    flat, odd = right.reshape(len(right), -1), text % 2 == 1
    if odd.all() or not odd.any():
        return float("nan")
    return float(sum(flat[half, flat[~half].mean(0).argmax()].sum() for half in (odd, ~odd)) / len(flat))
