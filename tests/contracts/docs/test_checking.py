"""The parts of a check that all exercises share: answers of unusual types and sizes, and functions that misbehave."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.paths import ROOT

HUGE = torch.zeros(1).expand(10**6, 10**6)
LONG = torch.zeros(1).expand(10**12)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a check, such as "blog.greedy", and returns what it prints."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs" / "tutorials"), *sys.path])

    def run(check: str, *answers: object) -> str:
        name, function = check.split(".")
        capsys.readouterr()
        getattr(importlib.import_module(f"exercises.{name}"), function)(*answers)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "huge", [HUGE, LONG, HUGE.numpy(), LONG.numpy(), [LONG] * 4, torch.zeros(4, 1).expand(4, 10**12)]
)
def test_size_of_an_answer_comes_before_its_numbers(huge: Any, said: Callable[..., str]) -> None:
    assert "Not yet: expected " in said("textbook.weights", huge)
    assert "Not yet: expected " in said("textbook.attention", lambda Q, K, V: huge)
    assert "Not yet: expected " in said("textbook.without_padding", lambda Q, K, V, n: huge)
    assert "Not yet: expected " in said("lecture.honest_loss", lambda model, tokens: huge)
    assert "Not yet: expected " in said("blog.map_shapes", [huge] * 3)
    assert "Not yet: " in said("blog.greedy", lambda *inputs: huge)


def test_vectors_of_any_type_are_accepted(said: Callable[..., str]) -> None:
    weights = [1 / 6, 1 / 6, 1 / 6, 1 / 2]
    for answer in (torch.tensor(weights), np.array(weights), pd.Series(weights), tuple(map(np.float32, weights))):
        assert said("textbook.weights", answer).startswith("Right: ")


def test_greedy_may_return_an_array(said: Callable[..., str]) -> None:
    def greedy(next_scores: Callable[[list[int]], torch.Tensor], start: int, end: int, limit: int) -> list[int]:
        tokens = [start]
        while len(tokens) <= limit and (token := int(next_scores(tokens).argmax())) != end:
            tokens.append(token)
        return tokens[1:]

    for kind in (list, tuple, np.array, pd.Series, torch.tensor):
        assert said("blog.greedy", lambda *inputs, kind=kind: kind(greedy(*inputs))).startswith("Right: ")


def test_function_gets_copies_of_lists_and_dicts(said: Callable[..., str]) -> None:
    def right_heads(weights: torch.Tensor, heads: list[int]) -> float:
        found = [int(row.argmax()) + 1 == head for row, head in zip(weights, heads, strict=True) if head]
        heads.clear()
        return sum(found) / len(found)

    def teacher_effect(top1: dict[str, list[float]]) -> tuple[float, float, str]:
        control, taught = (torch.tensor(top1.pop(f"two tokens, {name}")) for name in ("no teacher", "teacher"))
        top1["one token, teacher"].clear()
        difference, margin = (
            float(taught.mean() - control.mean()),
            2.776 * float((taught.var() + control.var()) / 3) ** 0.5,
        )
        verdict = "not decided" if abs(difference) <= margin else "more" if difference > 0 else "less"
        return difference, margin, verdict

    assert said("lecture.right_heads", right_heads).startswith("Right: ")
    assert said("slides.teacher_effect", teacher_effect).startswith("Right: ")


def test_messages_are_short_and_name_the_cause(said: Callable[..., str]) -> None:
    assert "found an ndarray" in said("textbook.weights", np.zeros((2, 2)))
    assert "found an int" in said("textbook.weights", 1)
    assert "found a uint8" in said("textbook.weights", np.uint8(1))
    assert "found one with more than 300 digits" in said("textbook.weights", [0, 0, 0, 10**400])
    assert "found an ndarray" in said("dataframe.confusion_matrix", [30 / 45, 30 / 42, np.array(["neutral", "pos"])])
    assert "expected one of " in said("dataframe.confusion_matrix", [30 / 45, 30 / 42, "x" * 10**6])
    assert len(said("dataframe.confusion_matrix", [30 / 45, 30 / 42, "x" * 10**6])) < 500
    assert "Call to_dense()" in said("lecture_vision.same_attention", torch.eye(3).to_sparse())
    assert "device meta" in said("lecture_vision.same_attention", torch.eye(3, device="meta"))
    assert "complex numbers" in said("lecture_vision.same_attention", torch.eye(3) * 1j)


def test_exit_of_a_function_is_reported(said: Callable[..., str]) -> None:
    def stop(error: BaseException) -> None:
        raise error

    assert "your function raised SystemExit: 3." in said("slides.layers", lambda *inputs: sys.exit(3))
    assert len(said("slides.layers", lambda *inputs: stop(ValueError("x" * 10**6)))) < 300
    with pytest.raises(KeyboardInterrupt):
        said("slides.layers", lambda *inputs: stop(KeyboardInterrupt()))
