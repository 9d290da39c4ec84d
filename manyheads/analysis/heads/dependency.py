"""Accuracy of attention heads as dependency parsers (Clark, Khandelwal, Levy & Manning 2019, section 4.2).

The other word that a word attends to most is taken as the prediction of its syntactic head. Both directions are scored:
the dependent attends to its head, or the head to its dependent. For each syntactic relation, the best attention head is
compared with the best fixed offset, such as "the previous word".

The root has no syntactic head among the words, so it is left out of all groups. The authors' code counts it as wrong in
the group "all". The relations are named as in the treebank.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from manyheads.analysis.drawing import new_figure, save
from manyheads.analysis.heads.selections import NONE, Hits, Selections, picks
from manyheads.files import JsonObject

# names of the two directions of attention, written as attending word -> attended word
DIRECTIONS = ("dep->head", "head->dep")
# Offsets in words from a dependent to its predicted syntactic head, for the baselines. The offset 0 is left out.
OFFSETS = (-3, -2, -1, 1, 2)
POSSESSIVE = ("poss", "nmod:poss")
MARKS = ("'s", "s'", "'", "’s", "s’", "’")  # possessive markers


def dependency_hits(
    maps: Tensor,
    words: Sequence[str],
    heads: Sequence[int],
    relations: Sequence[str],
    *,
    seen: Sequence[bool] | None = None,
    cluster: int = 0,
) -> Hits:
    """Return, for each word of a sentence, which attention heads find its syntactic head.

    maps   attention between words (L, H, W, W), summed over the tokens of the attended word and averaged over the
           tokens of the attending word
    heads  index of each word's syntactic head, from 0; negative for the root
    seen   true for each word that has tokens; default: all words. Other words, and words that depend on them, are left
           out.

    For "Anna" in "Anna's book", the attention of the word 's is scored instead, as in the paper, because 's attends to
    the syntactic head of "Anna".
    """
    count = len(words)
    items = [i for i, head in enumerate(heads) if head >= 0 and (seen is None or (seen[i] and seen[head]))]
    reader = [i + 1 if _before_mark(i, words, relations) else i for i in items]
    answers = np.array([heads[i] for i in items], dtype=np.int64)
    # word that each layer and head selects, for both directions of attention, (2, L, H)
    picked = picks(maps, ~torch.eye(count, dtype=torch.bool, device=maps.device))
    # true if the selection is correct, for N words and both directions, (N, 2, L, H)
    right = np.moveaxis(picked[..., reader] == answers, -1, 0)
    places = np.arange(count)
    # Offsets beyond the end of the sentence select the last word, as in the authors' code. Offsets before the beginning
    # select no word.
    offsets = {f"{k:+d}": np.maximum(np.minimum(places + k, count - 1), NONE) for k in OFFSETS}
    baselines = {name: guess[reader] == answers for name, guess in offsets.items()}
    return Hits(right, [relations[i] for i in items], baselines, cluster)


def _before_mark(word: int, words: Sequence[str], relations: Sequence[str]) -> bool:
    return relations[word] in POSSESSIVE and word + 1 < len(words) and words[word + 1] in MARKS


def draw_heads(selections: Selections, path: str | Path, minimum: int = 1) -> None:
    """Draw a heat map of the accuracy of every attention head (columns) on every syntactic relation (rows).

    The color shows the accuracy in the better direction. A ring marks the best head of a relation. The ring is filled
    if this head is better than the best offset by more than its confidence interval. The column on the right shows the
    best offset.
    """
    rows = selections.table(minimum)
    layers, heads = selections.right.shape[2:]
    # accuracy of every attention head on every syntactic relation, (R, L * H)
    accuracies = np.stack([selections.accuracies(row.group).max(0).reshape(-1) for row in rows])
    base = np.array([[row.base] for row in rows])
    # minimum width of the figure, so that the title fits
    wide, high = max(0.12 * layers * heads + 3, 7), 0.24 * len(rows) + 1.4
    figure = new_figure(wide, high)
    panel, side = figure.subplots(1, 2, width_ratios=(layers * heads, max(1, layers * heads / 36)))
    look: JsonObject = {"cmap": "Blues", "vmin": 0.0, "vmax": 1.0, "aspect": "auto", "interpolation": "nearest"}
    image = panel.imshow(accuracies, **look)
    side.imshow(base, **look)
    for y, row in enumerate(rows):
        far = row.low > row.base
        panel.plot(row.layer * heads + row.head, y, "o", ms=6, mec="#d81b60", mew=1.4,
                   mfc="#d81b60" if far else "none")  # fmt: skip
    for layer in range(1, layers):
        panel.axvline(layer * heads - 0.5, color="white", lw=0.8)
    middles = [layer * heads + (heads - 1) / 2 for layer in range(layers)]
    panel.set_xticks(middles, [f"\nlayer {layer}" for layer in range(layers)])
    panel.set_xticks(range(layers * heads), [str(i % heads) for i in range(layers * heads)], minor=True, fontsize=5)
    panel.set_yticks(range(len(rows)), [f"{row.group} ({row.items:,})" for row in rows], parse_math=False)
    figure.suptitle("fraction of the words whose syntactic head is found, by layer and head", fontsize=11)
    figure.supxlabel("ring: the best head; filled: significantly (95%) better than the best offset", fontsize=10)
    side.set_xticks([0], ["best\noffset"])
    side.set_yticks([])
    panel.tick_params(length=0, which="both")
    side.tick_params(length=0)
    figure.colorbar(image, ax=side, fraction=0.6, aspect=30)
    save(figure, path)
