"""SQuAD metrics: cases computed by hand from the published scripts, and comparison with torchmetrics."""

import pytest

from manyheads.tasks.answering.metrics import best, exact, f1, normalized, squad_metrics


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Panthers'\tdefense!", "panthers defense"),
        ("an apple a day", "apple day"),
        ("Theatre and another", "theatre and another"),  # whole words only
        ("a-the b", "athe b"),  # punctuation is removed first, so the words on both sides are joined
        ("308", "308"),
        ("U.S.A.", "usa"),
        ("“quoted” – dash", "“quoted” – dash"),  # ASCII punctuation only
        ("the", ""),
        ("!?", ""),
        ("A\u00a0b", "b"),
        ("THE Été", "été"),
    ],
)
def test_answers_are_normalized(text: str, expected: str) -> None:
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("guess", "truth", "em", "score"),
    [
        ("The 308 points.", "308 points", 1, 1),
        ("308", "308 points", 0, 2 / 3),  # precision 1, recall 1/2
        ("gave up just 308", "308 points", 0, 2 * (1 / 4) * (1 / 2) / (1 / 4 + 1 / 2)),
        ("to be or not to be", "be", 0, 2 / 7),  # a word counts as often as both have it
        ("be be", "to be or not to be", 0, 2 * 2 / 8),
        ("yes", "no", 0, 0),
        ("", "no", 0, 0),
        ("", "", 1, 1),
        ("the", "", 1, 1),
    ],
)
def test_single_answers_are_read(guess: str, truth: str, em: int, score: float) -> None:
    assert exact(guess, truth) == em
    assert f1(guess, truth) == pytest.approx(score)


def test_the_best_of_several_answers_counts() -> None:
    assert best(f1, "Santa Clara", ["California", "Santa Clara, California", "the Santa Clara"]) == 1
    assert best(exact, "x", ["y", "X."]) == 1
    assert best(exact, "", []) == 1  # version 2: no answer is right
    assert best(f1, "something", []) == 0
    assert best(f1, "", ["something"]) == 0
    assert best(exact, "", ["the"]) == 1  # empty after normalization: scored as in version 2's script


def test_mean_metrics_have_a_signature() -> None:
    metrics = squad_metrics(["308", "", "x"], [["308 points", "308 in all"], [], ["y"]])
    assert metrics["squad_f1"]["value"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert metrics["squad_em"]["value"] == pytest.approx(1 / 3)
    assert metrics["squad_f1"]["signature"] == "SQuAD 2.0's script, 3 questions, 1 without an answer"
    with pytest.raises(ValueError, match="found no questions to score"):
        squad_metrics([], [])
