"""Generated sentences up to their verb, with the number of the verb as the label.

An example is "near my cars , the key behind some small doors", whose label is "singular". Training sentences have one
or two modifiers of the subject, and test sentences have up to eight. The noun of a modifier may have another number
than the subject; it then attracts the verb to the wrong number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import LabeledSource

NOUNS = (
    "key", "cabinet", "door", "author", "editor", "senator", "lawyer", "teacher", "student", "farmer",
    "friend", "neighbor", "guard", "pilot", "doctor", "singer", "painter", "driver", "baker", "sailor",
    "poet", "king", "queen", "boy", "girl", "cat", "dog", "bird", "horse", "book", "letter", "picture",
    "table", "chair", "house", "car",
)  # fmt: skip
DETERMINERS = ("the", "my", "our", "some", "no", "any")
ADJECTIVES = (
    "old", "young", "small", "tall", "clever", "quiet", "happy", "famous", "angry", "new", "red", "green",
)  # fmt: skip
PREPOSITIONS = ("near", "behind", "with", "beside", "above", "below", "from", "of")
VERBS = ("saw", "liked", "met", "praised", "followed", "painted", "helped", "called")
TRAINED = (1, 2)  # numbers of modifiers in training sentences
TESTED = 2000  # number of sentences in each test set


@dataclass(frozen=True, kw_only=True)
class SentenceSource(LabeledSource):
    """Data source of generated sentences with one or two modifiers; `size` is the number of training sentences."""

    def embedded(self) -> SplitData[Labeled]:
        train, validation, test = (
            sentences(f"{self.seed} {split}", count, TRAINED)
            for split, count in (("train", self.size), ("validation", TESTED), ("test", TESTED))
        )
        return SplitData(train, validation, test)


def harder_sentences(seed: int) -> dict[str, Labeled]:
    """Return test sets with more modifiers than the training data, and with only attracting modifiers."""
    sets = {f"{count}_modifiers": sentences(f"{seed} {count}", TESTED, (count,)) for count in (4, 8)}
    return {**sets, "4_attractors": sentences(f"{seed} attractors", TESTED, (4,), attracted=True)}


def sentences(seed: str, count: int, modifiers: Sequence[int], *, attracted: bool = False) -> Labeled:
    """Generate sentences with one of the given numbers of modifiers.

    attracted  if True, the nouns of all modifiers have another number than the subject; if False, a random number
    """
    chance, texts, labels = random.Random(seed), [], []
    for _ in range(count):
        plural = chance.random() < 0.5
        words = [chance.choice(PREPOSITIONS), _noun_phrase(chance), ","] if chance.random() < 0.3 else []
        words.append(_noun_phrase(chance, plural))
        for _ in range(chance.choice(modifiers)):
            noun_phrase = _noun_phrase(chance, not plural if attracted else None)
            if chance.random() < 0.6:
                words += [chance.choice(PREPOSITIONS), noun_phrase]
            else:
                words += ["that", noun_phrase, chance.choice(VERBS)]
        texts.append(" ".join(words))
        labels.append("plural" if plural else "singular")
    return Labeled(texts, labels)


def _noun_phrase(chance: random.Random, plural: bool | None = None) -> str:
    plural = chance.random() < 0.5 if plural is None else plural
    adjective = [chance.choice(ADJECTIVES)] if chance.random() < 0.3 else []
    return " ".join([chance.choice(DETERMINERS), *adjective, chance.choice(NOUNS) + "s" * plural])
