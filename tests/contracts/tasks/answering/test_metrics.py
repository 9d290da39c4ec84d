"""Metrics of answers, compared with torchmetrics."""

import random

import pytest

from manyheads.tasks.answering.metrics import squad_metrics


def test_scores_equal_torchmetrics() -> None:
    """The SQuAD metric of torchmetrics follows version 1, so no answer is empty after normalization."""
    text = pytest.importorskip("torchmetrics.functional.text", reason="needs torchmetrics: pip install torchmetrics")
    draw = random.Random(0)
    pieces = ["the", "a", "An", "Giant", "giant's", "308", "-", "3.5", ",", "beat", "Beat.", "é", "\n", "U.S."]

    def phrase() -> str:
        return " ".join(draw.choices(pieces, k=draw.randint(0, 6)))

    guesses = [phrase() for _ in range(500)]
    truths = [[f"{phrase()} giant {phrase()}" for _ in range(draw.randint(1, 3))] for _ in guesses]
    told = text.squad(
        [{"id": str(i), "prediction_text": guess} for i, guess in enumerate(guesses)],
        [{"id": str(i), "answers": {"text": several, "answer_start": [0]}} for i, several in enumerate(truths)],
    )
    ours = squad_metrics(guesses, truths)
    assert 0 < ours["squad_em"]["value"] < ours["squad_f1"]["value"] < 1
    assert 100 * ours["squad_em"]["value"] == pytest.approx(told["exact_match"].item(), rel=1e-6)
    assert 100 * ours["squad_f1"]["value"] == pytest.approx(told["f1"].item(), rel=1e-6)
