import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from manyheads.core.logits import block_maxima
from manyheads.generation import Hypothesis, beam_search, greedy, score
from manyheads.generation.search import _top_continuations
from tests.support.mock import Recurrent, States, Table, enumerate_all

END, START = 0, 1


def limits_of(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def assert_same(found: Hypothesis, expected: Hypothesis) -> None:
    assert found.tokens == expected.tokens
    assert found.log_probability == pytest.approx(expected.log_probability, rel=1e-12)
    assert found.score == pytest.approx(expected.score, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("suppress", [(), (3,)])
def test_full_width_beam_is_exhaustive_search(alpha: float, suppress: tuple[int, ...]) -> None:
    model, limits = Recurrent(5, seed=3), (3, 4, 0)
    cache = model.start(3)
    expected = []
    for row, limit in enumerate(limits):
        every = enumerate_all(model, cache.states[row], START, END, limit, suppress)
        scored = [Hypothesis.of([*tokens], p, alpha) for tokens, p in every.items()]
        expected.append(sorted(scored, key=lambda h: -h.score)[:25])
    width = sum((4 - len(suppress)) ** length for length in range(5))
    found = beam_search(
        model.step,
        cache,
        start=START,
        end=END,
        limits=limits_of(*limits),
        suppress=suppress,
        beam=width,
        alpha=alpha,
        nbest=25,
    )
    for these, those in zip(found, expected, strict=True):
        assert len(these) == len(those)
        for this, that in zip(these, those, strict=True):
            assert_same(this, that)
    assert len(expected[0]) == 25
    assert len(expected[2]) == 1


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_full_width_probabilities_sum_to_at_most_one(alpha: float) -> None:
    """With a limit that closes nothing early, all outputs together have the probability of having ended by then."""
    model = Recurrent(4, seed=1)
    (found,) = beam_search(
        model.step,
        model.start(1),
        start=START,
        end=END,
        limits=limits_of(3),
        suppress=(3,),
        beam=15,
        nbest=15,
        alpha=alpha,
    )
    total = sum(math.exp(h.log_probability) for h in found if len(h.tokens) < 3)
    assert len({tuple(h.tokens) for h in found}) == len(found) == 15
    assert 0 < total < 1


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_one_beam_is_greedy(alpha: float) -> None:
    model, limits = Recurrent(9), torch.arange(40) % 12
    one = greedy(model.step, model.start(40), start=START, end=END, limits=limits, alpha=alpha)
    other = beam_search(model.step, model.start(40), start=START, end=END, limits=limits, alpha=alpha, beam=1)
    for this, (that,) in zip(one, other, strict=True):
        assert_same(this, that)
    assert len({len(h.tokens) for h in one}) > 3


def test_greedy_selects_the_most_probable_token() -> None:
    model = Recurrent(9)
    found = greedy(model.step, model.start(8), start=START, end=END, limits=torch.full((8,), 15))
    for row, hypothesis in enumerate(found):
        cache, token, expected = States(model.start(8).states[row : row + 1]), START, list[int]()
        while len(expected) < 15:
            token = int(model.step(torch.tensor([[token]]), cache)[0, 0].argmax())
            if token == END:
                break
            expected.append(token)
        assert hypothesis.tokens == expected


@pytest.mark.parametrize("beam", [1, 2, 4, 50])
def test_batch_equals_single_in_order(beam: int) -> None:
    model, limits = Recurrent(9), torch.arange(24) % 7 + 3
    together = beam_search(
        model.step, model.start(24), start=START, end=END, limits=limits, beam=beam, nbest=min(beam, 3)
    )
    for row in range(24):
        cache = States(model.start(24).states[row : row + 1])
        (alone,) = beam_search(
            model.step, cache, start=START, end=END, limits=limits[row : row + 1], beam=beam, nbest=min(beam, 3)
        )
        for this, that in zip(together[row], alone, strict=True):
            assert_same(this, that)
    assert len({tuple(h[0].tokens) for h in together}) > 5


def test_greedy_batch_equals_single_in_order() -> None:
    model, limits = Recurrent(9), torch.arange(24) % 7 + 3
    together = greedy(model.step, model.start(24), start=START, end=END, limits=limits)
    for row in range(24):
        cache = States(model.start(24).states[row : row + 1])
        (alone,) = greedy(model.step, cache, start=START, end=END, limits=limits[row : row + 1])
        assert_same(together[row], alone)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("suppress", [(), (8, 3)])
def test_a_hypothesis_score_equals_its_forced_score(alpha: float, suppress: tuple[int, ...]) -> None:
    model, limits = Recurrent(9), torch.arange(12)
    settings: dict[str, Any] = {"start": START, "end": END, "suppress": suppress, "alpha": alpha}
    one = greedy(model.step, model.start(12), limits=limits, **settings)
    many = beam_search(model.step, model.start(12), limits=limits, beam=4, nbest=4, **settings)
    for found in (one, *zip(*(h[:1] for h in many), strict=True), [h[-1] for h in many]):
        forced = score(model.step, model.start(12), [h.tokens for h in found], **settings)
        for this, that in zip(found, forced, strict=True):
            assert_same(this, that)


def test_finished_sentences_leave_the_batch() -> None:
    model, limits = Recurrent(9), torch.arange(10)
    found = greedy(model.step, model.start(10), start=START, end=END, limits=limits)
    lengths = [len(h.tokens) for h in found]
    assert model.rows == [sum(n >= position for n in lengths) for position in range(max(lengths) + 1)]

    model.rows.clear()
    beam_search(model.step, model.start(10), start=START, end=END, limits=limits, beam=4)
    assert model.rows[0] == 10  # a sentence has one row until there is something to choose from
    assert model.rows[1] <= 4 * 9  # the sentence with limit 0 has left
    assert all(after <= before for before, after in pairwise(model.rows[1:]))
    assert model.rows[-1] <= 4


def test_beam_search_stops_when_no_hypothesis_can_improve() -> None:
    """One ended at once with 0.9: what lives has at most 0.1, so there is no second step."""
    model = Table({(): [0.9, 0.06, 0.04]})
    ((best,),) = beam_search(model.step, model.start(1), start=START, end=END, limits=limits_of(30), beam=3, alpha=0.0)
    assert best.tokens == []
    assert best.log_probability == pytest.approx(math.log(0.9))
    assert model.rows == [1]


def test_connections_at_a_limit_are_closed() -> None:
    model, limits = Recurrent(30, sharpness=0.1), torch.arange(20)
    for h, limit in zip(greedy(model.step, model.start(20), start=START, end=END, limits=limits), limits, strict=True):
        assert len(h.tokens) <= limit
    found = beam_search(model.step, model.start(20), start=START, end=END, limits=limits, nbest=4)
    assert any(len(h.tokens) == limit for pool, limit in zip(found, limits, strict=True) for h in pool)
    for pool, limit in zip(found, limits, strict=True):
        assert pool
        assert all(len(h.tokens) <= limit for h in pool)


def test_suppressed_tokens_are_never_generated_in_search() -> None:
    model, limits = Recurrent(6), torch.full((16,), 8)
    free = greedy(model.step, model.start(16), start=START, end=END, limits=limits)
    used = {token for h in free for token in h.tokens}
    assert {3, 4} <= used
    for found in (
        greedy(model.step, model.start(16), start=START, end=END, limits=limits, suppress=(3, 4)),
        [
            h
            for pool in beam_search(
                model.step, model.start(16), start=START, end=END, limits=limits, suppress=(3, 4), beam=30, nbest=30
            )
            for h in pool
        ],
    ):
        assert not {3, 4} & {token for h in found for token in h.tokens}
        assert all(math.isfinite(h.log_probability) for h in found)


def test_alpha_changes_the_ranking() -> None:
    """By hand. [] has log 0.5 = -0.693, [2] has log 0.5 * 0.9 = -0.799. At alpha 1 the penalties are 6/6 and 7/6:
    the scores become -0.693 and -0.684, and the longer one wins."""
    model = Table({(): [0.5, 0.0, 0.5], (2,): [0.9, 0.0, 0.1], (2, 2): [1.0, 0.0, 0.0]})
    for alpha, order in ((0.0, [[], [2]]), (1.0, [[2], []])):
        (found,) = beam_search(
            model.step, model.start(1), start=START, end=END, limits=limits_of(2), beam=3, nbest=2, alpha=alpha
        )
        assert [h.tokens for h in found] == order
        probabilities = {0: math.log(0.5), 1: math.log(0.45)}
        for h in found:
            assert h.log_probability == pytest.approx(probabilities[len(h.tokens)])
            assert h.score == pytest.approx(probabilities[len(h.tokens)] / ((6 + len(h.tokens)) / 6) ** alpha)


def test_beam_search_finds_what_greedy_misses() -> None:
    """Greedy takes 2 (0.6), behind which nothing is likely; 0.4 * 1.0 through 3 is the better sentence."""
    model = Table(
        {(): [0.0, 0.0, 0.6, 0.4], (2,): [0.34, 0.0, 0.33, 0.33], (3,): [1.0, 0.0, 0.0, 0.0]}
        | {(2, 2): [1.0, 0.0, 0.0, 0.0], (2, 3): [1.0, 0.0, 0.0, 0.0]}
    )
    (one,) = greedy(model.step, model.start(1), start=START, end=END, limits=limits_of(2))
    ((best,),) = beam_search(model.step, model.start(1), start=START, end=END, limits=limits_of(2), beam=2, alpha=0.0)
    assert one.tokens == [2]
    assert best.tokens == [3]
    assert best.log_probability == pytest.approx(math.log(0.4))


def test_full_width_beam_is_never_worse_than_greedy() -> None:
    model, limits = Recurrent(4), torch.full((20,), 4)
    one = greedy(model.step, model.start(20), start=START, end=END, limits=limits, alpha=0.0)
    many = beam_search(model.step, model.start(20), start=START, end=END, limits=limits, beam=121, alpha=0.0)
    gains = [pool[0].log_probability - h.log_probability for h, pool in zip(one, many, strict=True)]
    assert min(gains) > -1e-12
    assert max(gains) > 1e-3


def test_ties_are_broken_in_order() -> None:
    model, limits = Table({(): [0.0, 0.0, 0.5, 0.5]}), limits_of(2)
    (one,) = greedy(model.step, model.start(1), start=START, end=END, limits=limits)
    (many,) = beam_search(model.step, model.start(1), start=START, end=END, limits=limits, beam=2, nbest=2)
    assert one.tokens == [2]
    assert [h.tokens for h in many] == [[2], [3]]


def test_one_beam_is_greedy_with_ties() -> None:
    model, limits = Recurrent(30), torch.full((40,), 8)

    def coarse(tokens: torch.Tensor, cache: States) -> torch.Tensor:
        return model.step(tokens, cache).clamp(max=1).round()

    one = greedy(coarse, model.start(40), start=START, end=END, limits=limits)
    other = beam_search(coarse, model.start(40), start=START, end=END, limits=limits, beam=1)
    assert [h.tokens for h in one] == [h.tokens for (h,) in other]
    assert len({tuple(h.tokens) for h in one}) > 5


@pytest.mark.parametrize(("length", "count"), [(10, 3), (64, 64), (65, 8), (1000, 8), (1000, 1000)])
def test_best_is_a_stable_sort_of_scores(length: int, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 5, (20, length), generator=generator).float().log()  # many ties
    offsets = torch.randint(-2, 3, (10, 2), generator=generator).float()
    values, parents, tokens = _top_continuations(logits, block_maxima(logits), offsets, count)
    scores = (logits.view(10, 2, length) + offsets[:, :, None]).flatten(1)
    expected = scores.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :count])
    assert torch.equal(parents * length + tokens, expected.indices[:, :count])


def test_bfloat16_logits_are_summed_in_float32() -> None:
    model, limits = Recurrent(9), torch.full((8,), 6)

    def rough(tokens: torch.Tensor, cache: States) -> torch.Tensor:
        return model.step(tokens, cache).bfloat16()

    found = greedy(rough, model.start(8), start=START, end=END, limits=limits)
    forced = score(rough, model.start(8), [h.tokens for h in found], start=START, end=END)
    for this, that in zip(found, forced, strict=True):
        assert this.log_probability == pytest.approx(that.log_probability, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nbest": 5}, r"nbest is 5: expected a number from 1 to the beam size \(4\)"),
        ({"beam": 0}, r"expected a number from 1 to the beam size \(0\)"),
        ({"alpha": -1.0}, "alpha is -1.0: expected a number from 0 to 10"),
        ({"alpha": float("nan")}, "alpha is nan: expected a number from 0 to 10"),
        ({"alpha": 1e308}, r"alpha is 1e\+308: expected a number from 0 to 10"),
        ({"suppress": (END,)}, r"cannot suppress the end token 0"),
        ({"limits": torch.tensor([3])}, "expected 2 limits, one per row"),
        ({"limits": torch.tensor([3, -1])}, "expected limits of 0 or more, found -1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    model = Recurrent(5)
    given: dict[str, Any] = {"limits": torch.tensor([3, 3]), **settings}
    with pytest.raises(ValueError, match=message):
        beam_search(model.step, model.start(2), start=START, end=END, **given)


@pytest.mark.parametrize("alpha", [-1.0, 1e308, float("inf"), float("nan")])
def test_every_search_checks_the_length_penalty(alpha: float) -> None:
    model, limits = Recurrent(5), torch.tensor([3, 3])
    with pytest.raises(ValueError, match="alpha is .*: expected a number from 0 to 10"):
        greedy(model.step, model.start(2), start=START, end=END, limits=limits, alpha=alpha)
    with pytest.raises(ValueError, match="alpha is .*: expected a number from 0 to 10"):
        score(model.step, model.start(2), [[2], [2]], start=START, end=END, alpha=alpha)
