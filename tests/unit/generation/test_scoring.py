import math

import pytest
import torch

from manyheads.generation import length_penalty, score
from tests.support.mock import Recurrent, Table

END, START = 0, 1


def test_scores_equal_a_hand_computation() -> None:
    model = Table({(): [0.5, 0.0, 0.5], (2,): [0.9, 0.0, 0.1], (0,): [1.0, 0.0, 0.0], (2, 2): [0.3, 0.0, 0.7]})
    empty, one, two = score(model.step, model.start(3), [[], [2], [2, 2]], start=START, end=END, alpha=1.0)
    assert empty.log_probability == pytest.approx(math.log(0.5))
    assert one.log_probability == pytest.approx(math.log(0.5 * 0.9))
    assert two.log_probability == pytest.approx(math.log(0.5 * 0.1 * 0.3))
    assert two.score == pytest.approx(two.log_probability * 6 / 8)
    assert two.tokens == [2, 2]


def test_length_penalty() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 0.5) == pytest.approx(math.sqrt(2))


def test_padding_does_not_change_results() -> None:
    model, targets = Recurrent(9), [[2, 3], [], [4, 5, 6, 7, 8, 2], [0]]
    together = score(model.step, model.start(4), targets, start=START, end=END)
    for row, target in enumerate(targets):
        cache = model.start(4)
        cache.select(torch.tensor([row]))
        (alone,) = score(model.step, cache, [target], start=START, end=END)
        assert together[row].log_probability == pytest.approx(alone.log_probability, rel=1e-12)


def test_all_tokens_pass_one_step() -> None:
    model = Recurrent(9)
    score(model.step, model.start(2), [[2, 3, 4], [5]], start=START, end=END)
    assert model.rows == [2]


def test_a_suppressed_target_is_impossible() -> None:
    model = Recurrent(9)
    one, other = score(model.step, model.start(2), [[2, 8], [2, 3]], start=START, end=END, suppress=(8,))
    assert one.log_probability == -math.inf
    assert math.isfinite(other.log_probability)


def test_the_number_of_targets_is_checked() -> None:
    model = Recurrent(9)
    with pytest.raises(ValueError, match="expected 2 targets, one per row, found 1"):
        score(model.step, model.start(2), [[2]], start=START, end=END)
