"""How well entities are found: precision, recall and F1 of whole spans, as CoNLL's script conlleval counts them.

An entity counts when its kind, its first and its last word are all right. The share of right tags is another number,
and a flattering one: most words are outside any entity.
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
    """Words `start` to `end`, which is not among them."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Counts:
    """Entities found, wanted, and both; what is divided by nothing is 0, as in conlleval."""

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
    """The entities that IOB2 tags mark. As in conlleval an I- that goes on with nothing of its kind begins one: a
    model may write what an annotator may not. Tags of another form (parts of speech) mark none."""
    spans: list[Entity] = []
    start, before = 0, ""  # where the entity before a word began, and its kind
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
    """By kind of entity, and all kinds together under ""."""
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
    """entity_f1 over all entities (micro average), and accuracy, which is that of single tags."""
    if not wanted:
        raise UserError("there is nothing to score: the test data are empty")
    together = count_entities(predicted, wanted)[""]
    words = sum(map(len, wanted))
    right = sum(
        g == t for guess, truth in zip(predicted, wanted, strict=True) for g, t in zip(guess, truth, strict=True)
    )
    counts = f"precision {together.precision:.4f}, recall {together.recall:.4f}, {together.wanted:,} entities"
    return {
        "entity_f1": {"value": together.f1, "signature": f"whole spans, IOB2, micro average (conlleval): {counts}"},
        "accuracy": {"value": right / max(1, words), "signature": f"tags of {words:,} words, O among them"},
    }
