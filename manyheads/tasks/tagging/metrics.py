"""Precision, recall and F1 of entities, counted as whole spans as in CoNLL's script conlleval.

An entity is right if its type, its first word and its last word are all right. The accuracy of single tags is a
different, usually higher number, because most words are outside any entity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from manyheads.data.readers.conll import OUTSIDE
from manyheads.errors import UserError
from manyheads.training.record import Metrics


class Entity(NamedTuple):
    """Entity from word `start` to word `end`, without `end`."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Counts:
    """Numbers of entities that are right, found, and in the reference.

    A ratio with an empty denominator is 0, as in conlleval.
    """

    right: int
    found: int
    wanted: int

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.wanted if self.wanted else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.found + self.wanted) if self.right else 0.0


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities that IOB2 tags mark.

    An I- tag that does not continue an entity of its type starts a new one, as in conlleval, because a model may
    predict such tags. Tags in another format, such as parts of speech, mark no entities.
    """
    spans: list[Entity] = []
    start, before = 0, ""  # start and type of the entity that the previous word belongs to
    for i, tag in enumerate([*tags, OUTSIDE]):
        kind = tag[2:] if tag.startswith(("B-", "I-")) else ""
        goes_on = tag.startswith("I-") and kind == before
        if before and not goes_on:
            spans.append(Entity(before, start, i))
        if not goes_on:
            start = i
        before = kind
    return spans


def count_entities(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> dict[str, Counts]:
    """Return the counts by type of entity, and the total under the empty key."""
    right, predictions, truths = Counter[str](), Counter[str](), Counter[str]()
    for guess, truth in zip(predicted, wanted, strict=True):
        assert len(guess) == len(truth)
        guessed, true = set(entities(guess)), set(entities(truth))
        for counter, spans in ((right, guessed & true), (predictions, guessed), (truths, true)):
            counter.update(entity.kind for entity in spans)
            counter[""] += len(spans)
    kinds = sorted({"", *predictions, *truths})
    return {kind: Counts(right[kind], predictions[kind], truths[kind]) for kind in kinds}


def tagging_metrics(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> Metrics:
    """Return entity_f1 over all entities (micro average), and the accuracy of single tags."""
    if not wanted:
        raise UserError("found no sentences to score: the test data are empty")
    together = count_entities(predicted, wanted)[""]
    words = sum(map(len, wanted))
    right = sum(
        g == t for guess, truth in zip(predicted, wanted, strict=True) for g, t in zip(guess, truth, strict=True)
    )
    counts = f"precision {together.precision:.4f}, recall {together.recall:.4f}, {together.wanted:,} entities"
    return {
        "entity_f1": {"value": together.f1, "signature": f"whole spans, IOB2, micro average (conlleval): {counts}"},
        "accuracy": {"value": right / max(1, words), "signature": f"tags of {words:,} words, including O"},
    }
