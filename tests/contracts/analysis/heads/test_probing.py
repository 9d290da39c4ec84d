"""Attention-only parsers, compared with scipy."""

import numpy as np
import pytest
from scipy.optimize import minimize

from manyheads.analysis.heads.probing_classifiers import Parsed, train_parser
from tests.unit.analysis.heads.test_probing_classifiers import sentences


def likelihood(weights: np.ndarray, examples: list[Parsed]) -> float:
    """Return the mean of -log p over words, from the definition."""
    total, words = 0.0, 0
    for sentence in examples:
        maps = sentence.maps.double().numpy()
        for j, head in enumerate(sentence.heads):
            others = [i for i in range(len(sentence.heads)) if i != j]
            scores = [weights[0] @ maps[:, i, j] + weights[1] @ maps[:, j, i] for i in others]
            if head >= 0:
                total += float(np.logaddexp.reduce(scores)) - scores[others.index(head)]
                words += 1
    return total / words


def test_a_parser_on_attention_reaches_scipys_optimum() -> None:
    examples = sentences(10, 1.5)
    parser = train_parser(examples, epochs=300)
    ours = likelihood(parser.constant.detach().double().numpy(), examples)
    best = minimize(lambda w: likelihood(w.reshape(2, 3), examples), np.zeros(6))
    assert ours == pytest.approx(best.fun, abs=2e-3)
    assert likelihood(np.zeros((2, 3)), examples) > best.fun + 0.1
