"""Precision, recall and F1 of entities, counted as whole spans as in CoNLL's script conlleval.

An entity is right if its type, its first word and its last word are all right. The accuracy of single tags is a
different, usually higher number, because most words are outside any entity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from manyheads.data.readers.conll import OUTSIDE
from manyheads.errors import UserError
from manyheads.tasks.evaluation import Counts
from manyheads.training.record import Metrics


class Entity(NamedTuple):
    """Named entity that consists of the words `start` to `end`, without `end`."""

    kind: str
    start: int
    end: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the named entities in a sequence of tags in IOB2 format (B-, I- and O).

    An I- tag that does not continue an entity of its type starts a new one, as in conlleval, because a model may
    predict such tags. Tags in another format, such as parts of speech, mark no entities.
    """
    spans: list[Entity] = []
    start, current = 0, ""  # first word and type of the entity that contains the previous word
    for i, tag in enumerate([*tags, OUTSIDE]):
        kind = tag[2:] if tag.startswith(("B-", "I-")) else ""
        continues = tag.startswith("I-") and kind == current
        if current and not continues:
            spans.append(Entity(current, start, i))
        if not continues:
            start = i
        current = kind
    return spans


def count_entities(predicted: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, Counts]:
    """Return the counts of right, predicted and reference entities for each entity type, and in total.

    The total has the empty string as key.
    """
    right, predictions, truths = Counter[str](), Counter[str](), Counter[str]()
    for guess, truth in zip(predicted, references, strict=True):
        assert len(guess) == len(truth)
        guessed, true = set(entities(guess)), set(entities(truth))
        for counter, spans in ((right, guessed & true), (predictions, guessed), (truths, true)):
            counter.update(entity.kind for entity in spans)
            counter[""] += len(spans)
    kinds = sorted({"", *predictions, *truths})
    return {kind: Counts(right[kind], predictions[kind], truths[kind]) for kind in kinds}


def tagging_metrics(predicted: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Metrics:
    """Return the metric entity_f1 over all entities (micro average), and the accuracy of single tags."""
    if not references:
        raise UserError("found no sentences to score: the test data are empty")
    total = count_entities(predicted, references)[""]
    words = sum(map(len, references))
    right = sum(
        g == t for guess, truth in zip(predicted, references, strict=True) for g, t in zip(guess, truth, strict=True)
    )
    counts = f"precision {total.precision:.4f}, recall {total.recall:.4f}, {total.in_reference:,} entities"
    return {
        "entity_f1": {"value": total.f1, "signature": f"whole spans, IOB2, micro average (conlleval): {counts}"},
        "accuracy": {"value": right / max(1, words), "signature": f"tags of {words:,} words, including O"},
    }
