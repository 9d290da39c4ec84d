"""Accuracy of attention heads at finding the antecedent of a mention (Clark et al. 2019, section 4.3).

A mention is a phrase that refers to an entity; its antecedent is an earlier mention of the same entity. Each mention is
represented by its head word, the main word of the phrase. For each mention, an attention head selects the preceding
mention that gets the highest attention from this mention, or that gives the highest attention to it. The selection is
correct if both mentions refer to the same entity. Mentions with an antecedent in the same input are scored, grouped by
type of head word. There are two baselines: the nearest preceding mention, and the nearest with the same head word
(otherwise the nearest).

The authors' code for this is not released. Only mentions of entities that are mentioned again are candidates, as in
CoNLL-2012, which does not annotate other mentions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyheads.analysis.heads.selections import Hits, picks

# names of the two directions of attention, written as attending word -> attended word
DIRECTIONS = ("mention->antecedent", "antecedent->mention")
# Type of a mention, by the universal part of speech of the mention's head word. All other mentions are nominal.
KINDS = {"PRON": "pronoun", "PROPN": "proper noun"}
NEAREST, SAME_WORD = "nearest", "same word"


class Referring(NamedTuple):
    """Mention of an entity in a text.

    entity  identifier of the entity
    head    index of the mention's head word in the text
    tag     universal part of speech of the head word
    """

    entity: str
    head: int
    tag: str


def coreference_hits(
    maps: Tensor, words: Sequence[str], mentions: Sequence[Referring], *, cluster: int = 0
) -> Hits | None:
    """Return, for every mention and attention head, whether the head finds an antecedent; None if no mention has one.

    maps      attention between the words of the text, (L, H, W, W)
    mentions  mentions of all entities that are mentioned more than once in the document
    """
    ordered = sorted(mentions, key=lambda mention: mention.head)
    same = [word.lower() for word in words]
    candidates = torch.zeros(len(words), len(words), dtype=torch.bool, device=maps.device)
    items: list[Referring] = []
    answers: list[set[int]] = []
    nearest: list[int] = []
    alike: list[int] = []
    for mention in ordered:
        before = [other for other in ordered if other.head < mention.head]
        right = {other.head for other in before if other.entity == mention.entity}
        if not right:
            continue
        places = [other.head for other in before]
        candidates[mention.head, places] = True
        items.append(mention)
        answers.append(right)
        nearest.append(places[-1])
        alike.append(next((p for p in reversed(places) if same[p] == same[mention.head]), places[-1]))
    if not items:
        return None
    # word that each layer and head selects, for both directions of attention, (2, L, H)
    picked = picks(maps, candidates)
    hits = np.stack(
        [np.isin(picked[..., m.head], list(right)) for m, right in zip(items, answers, strict=True)]
    )  # true if the selection is correct, for N mentions and both directions of attention, (N, 2, L, H)

    def scored(guesses: Sequence[int]) -> np.ndarray:
        return np.array([guess in right for guess, right in zip(guesses, answers, strict=True)])

    baselines = {NEAREST: scored(nearest), SAME_WORD: scored(alike)}
    return Hits(hits, [KINDS.get(m.tag, "nominal") for m in items], baselines, cluster)
