"""Exact match and F1 of answers, by the rules of SQuAD's published scripts (Rajpurkar 2016, 2018).

Both texts are lowercased, stripped of ASCII punctuation and of the articles a, an and the, and split at white space.
F1 is that of the bags of words. Of several right answers the one that fits best counts. A question without an answer
(version 2) wants none: anything else scores zero, and so does no answer where there is one.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from manyheads.errors import UserError
from manyheads.training.record import Metrics

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """In the scripts' order: lower case, punctuation, articles, white space."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(guess: str, truth: str) -> float:
    return float(normalized(guess) == normalized(truth))


def f1(guess: str, truth: str) -> float:
    guessed, true = normalized(guess).split(), normalized(truth).split()
    if not guessed or not true:
        return float(guessed == true)
    shared = sum((Counter(guessed) & Counter(true)).values())
    return 2 * shared / (len(guessed) + len(true))


def best(score: Callable[[str, str], float], guess: str, truths: Sequence[str]) -> float:
    """By the right answer that fits best; those of which normalising leaves nothing do not count, and if none is left
    the right answer is none."""
    return max(score(guess, truth) for truth in [t for t in truths if normalized(t)] or [""])


def squad_metrics(guesses: Sequence[str], truths: Sequence[Sequence[str]]) -> Metrics:
    """squad_f1 and squad_em, means over the questions; an empty guess is no answer, no truths are none."""
    if not truths:
        raise UserError("there is nothing to score: the test data are empty")
    signature = f"SQuAD 2.0's script, {len(truths):,} questions"
    if impossible := sum(not answers for answers in truths):
        signature += f", {impossible:,} without an answer"
    return {
        name: {
            "value": sum(best(score, g, t) for g, t in zip(guesses, truths, strict=True)) / len(truths),
            "signature": signature,
        }
        for name, score in (("squad_f1", f1), ("squad_em", exact))
    }
