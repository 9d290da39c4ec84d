"""Exact match and F1 of answers to questions, by the rules of SQuAD's published scripts (Rajpurkar 2016, 2018).

Before the comparison, the predicted and the right answer are lowercased, ASCII punctuation and the articles a, an and
the are removed, and the rest is split at whitespace. F1 compares the words of both answers without regard to their
order. If a question has several right answers, the best score counts. In version 2 of SQuAD, a question may have no
answer. Then only an empty prediction is right. If the question has an answer, an empty prediction scores zero.
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
    """Normalize an answer as SQuAD's scripts do: lower case, no punctuation, no articles, single spaces."""
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
    """Return the highest score that a predicted answer reaches against any right answer to the question.

    Right answers that are empty after normalization are ignored. If no other right answer remains, the prediction is
    right only if it is empty.
    """
    return max(score(guess, truth) for truth in [t for t in truths if normalized(t)] or [""])


def squad_metrics(guesses: Sequence[str], truths: Sequence[Sequence[str]]) -> Metrics:
    """Return the metrics squad_f1 and squad_em of predicted answers, as means over all questions.

    An empty prediction means "no answer", and an empty list of right answers means that the question has no answer.
    """
    if not truths:
        raise UserError("found no questions to score: the test data are empty")
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
