"""Constraints hold in every search, and a full-width search finds the best of all outputs that satisfy them."""

from itertools import pairwise

import pytest
import torch

from manyheads.errors import UserError
from manyheads.generation import Hypothesis, beam_search, greedy
from manyheads.generation.constraints import Constraints, forced_search
from tests.support.mock import Recurrent, enumerate_all

END, START, LIMIT, ALPHA = 0, 1, 4, 0.6
WIDTH = sum(4**length for length in range(LIMIT + 1))


def contains(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def satisfied(tokens: tuple[int, ...], c: Constraints) -> bool:
    repeats = list(zip(*(tokens[i:] for i in range(c.no_repeat)), strict=False)) if c.no_repeat else []
    return (
        tokens[: len(c.prefix)] == c.prefix
        and not any(contains(tokens, part) for part in c.banned)
        and len(tokens) >= c.min_length
        and len(repeats) == len(set(repeats))
        and all(contains(tokens, part) for part in c.forced)
    )


def best_of_all(model: Recurrent, row: int, c: Constraints, count: int) -> list[Hypothesis]:
    every = enumerate_all(model, model.start(3).states[row], START, END, LIMIT, ())
    allowed = [Hypothesis.of([*tokens], p, ALPHA) for tokens, p in every.items() if satisfied(tokens, c)]
    return sorted(allowed, key=lambda h: -h.score)[:count]


CASES = [
    Constraints(prefix=(3, 2)),
    Constraints(banned=((2,), (4, 3))),
    Constraints(no_repeat=1),
    Constraints(no_repeat=2),
    Constraints(min_length=3),
    Constraints(prefix=(4,), banned=((3,),), no_repeat=2, min_length=2),
]


@pytest.mark.parametrize("constraints", CASES, ids=str)
def test_a_full_width_beam_finds_the_best_outputs_that_satisfy_constraints(constraints: Constraints) -> None:
    model = Recurrent(5, seed=3)
    limits = torch.full((3,), LIMIT)
    found = beam_search(
        model.step, model.start(3), start=START, end=END, limits=limits, beam=WIDTH, alpha=ALPHA, nbest=5,
        constraints=constraints,
    )  # fmt: skip
    for row, ranked in enumerate(found):
        expected = best_of_all(model, row, constraints, 5)
        assert [h.tokens for h in ranked] == [h.tokens for h in expected]
        assert [h.score for h in ranked] == pytest.approx([h.score for h in expected], rel=1e-9)
    for h in greedy(model.step, model.start(3), start=START, end=END, limits=limits, constraints=constraints):
        assert satisfied(tuple(h.tokens), constraints)


@pytest.mark.parametrize("forced", [((3,),), ((2, 4),), ((3,), (4,)), ((4, 4), (2,))])
def test_a_wide_forced_search_finds_the_best_outputs_with_the_words(forced: tuple[tuple[int, ...], ...]) -> None:
    model = Recurrent(5, seed=3)
    constraints = Constraints(forced=forced, no_repeat=3)
    for row in range(3):
        cache = model.start(3)
        cache.select(torch.tensor([row]))
        found = forced_search(
            model.step, cache, constraints, start=START, end=END, limit=LIMIT, beam=WIDTH, alpha=ALPHA, nbest=3
        )
        expected = best_of_all(model, row, constraints, 3)
        assert [h.tokens for h in found] == [h.tokens for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-5)


def test_a_narrow_forced_search_contains_the_words() -> None:
    model = Recurrent(40, seed=1)
    constraints = Constraints(forced=((17, 23, 5), (31,)), prefix=(8,))
    for beam in (1, 3):
        for h in forced_search(
            model.step, model.start(1), constraints, start=START, end=END, limit=12, beam=beam, nbest=beam
        ):
            assert satisfied(tuple(h.tokens), constraints)
            assert all(a != END for a, _ in pairwise(h.tokens))
    with pytest.raises(UserError, match="the forced words have 4 tokens: expected at most 3"):
        forced_search(model.step, model.start(1), constraints, start=START, end=END, limit=3)
