"""The parts of a check that all exercises share: answers of unusual types and sizes, and functions that misbehave."""

import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import manyheads
from manyheads import preset
from manyheads.models.text_classifier import TextClassifier
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
    assert "Call to_dense()" in said("blog.encoding", lambda length, width: torch.zeros(length, width).to_sparse())
    assert "Call to_dense()" in said("blog.causal_scores", lambda scores: scores.to_sparse())
    assert "found a type" in said("textbook.weights", np.float64)
    assert "device meta" in said("lecture_vision.same_attention", torch.eye(3, device="meta"))
    assert "complex numbers" in said("lecture_vision.same_attention", torch.eye(3) * 1j)


def test_exit_of_a_function_is_reported(said: Callable[..., str]) -> None:
    def stop(error: BaseException) -> None:
        raise error

    assert "your function raised SystemExit: 3." in said("slides.layers", lambda *inputs: sys.exit(3))
    assert len(said("slides.layers", lambda *inputs: stop(ValueError("x" * 10**6)))) < 300
    with pytest.raises(KeyboardInterrupt):
        said("slides.layers", lambda *inputs: stop(KeyboardInterrupt()))


def split(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    in_test = data["text"].isin(data["text"].drop_duplicates().sample(frac=0.2, random_state=1))
    return data[~in_test].copy(), data[in_test].copy()


def invented(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    texts, labels = [f"text {n}" for n in range(len(data))], ["pos", "neg"] * (len(data) // 2)
    rows = pd.DataFrame({"text": texts, "label": labels})
    return rows.iloc[48:], rows.iloc[:48]


def replaced(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    train, test = split(data)
    return pd.concat([train.head(1)] * len(train)), test


def relabeled(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    train, test = split(data)
    train.iloc[0, 1] = "pos" if train.iloc[0, 1] == "neg" else "neg"
    return train, test


def repeated(data: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    train, test = split(data)
    train.iloc[0] = train.iloc[1]
    return train, test


@pytest.mark.parametrize("function", [invented, replaced, relabeled, repeated])
def test_split_keeps_each_row(function: Callable[..., Any], said: Callable[..., str]) -> None:
    assert "some rows are not in the data, or not that often, such as ('" in said("dataframe.honest_split", function)


def test_split_may_have_other_indices_and_orders_but_no_other_columns(said: Callable[..., str]) -> None:
    def changed(change: Callable[[pd.DataFrame], pd.DataFrame]) -> str:
        return said("dataframe.honest_split", lambda data: [*map(change, split(data))])

    assert changed(lambda part: part.sample(frac=1, random_state=1).reset_index()[["label", "text"]])[:6] == "Right:"
    renamed = changed(lambda part: part.rename(columns={"label": "y"}))
    assert renamed == "Not yet: expected one column label, found the columns ['text', 'y'].\n"
    assert "found the columns ['text', 'label', 'text']" in changed(lambda part: part[["text", "label", "text"]])


def test_center_may_be_a_list_of_two_numbers_of_any_type(said: Callable[..., str]) -> None:
    def center(weights: torch.Tensor) -> list[np.float32]:
        Y, X = weights.shape[:2]
        y, x = torch.arange(Y).float(), torch.arange(X).float()
        dy, dx = (weights.sum(3) * y).sum(2) - y[:, None], (weights.sum(2) * x).sum(2) - x
        return [np.float32(dy.mean()), np.float32(dx.mean())]

    for kind in (list, tuple, np.array, torch.tensor, lambda shift: [*map(float, shift)]):
        assert said("lecture_vision.center", lambda weights, kind=kind: kind(center(weights)))[:6] == "Right:"
    assert "found 4" in said("lecture_vision.center", lambda weights: [*center(weights), "junk", None])
    assert "number 2 of the shift" in said("lecture_vision.center", lambda weights: [center(weights)[0], "junk"])


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda model: model.encoder.blocks[0].train(), "a part of the model is in training mode"),
        (lambda model: model.train(), "the model is in training mode"),
        (lambda model: model.encoder.blocks[0].attention.query.weight.fill_(torch.nan), "contain NaN"),
        (
            lambda model: [p.fill_(1e38) for p in model.encoder.blocks[0].attention.parameters()],
            "attention contains NaN",
        ),
    ],
)
def test_padding_proof_model_is_ready_for_texts(
    change: Callable[[Any], object], hint: str, said: Callable[..., str]
) -> None:
    model = TextClassifier(preset("text-classifier/textbook", masked=True)).eval()
    assert said("textbook.padding_proof_model", model)[:6] == "Right:"
    with torch.no_grad():
        change(model)
    assert hint in said("textbook.padding_proof_model", model)


def zero_heads(model: Any, text: str, layer: int) -> float:
    usual = model.embed([text])[0].vector
    model.model.encoder.blocks[layer].attention.output.weight.detach().zero_()
    return float(usual @ model.embed([text])[0].vector)


def test_function_that_changes_minilm_for_good_is_reported(said: Callable[..., str]) -> None:
    def open_edit(model: Any, text: str, layer: int) -> float:
        usual = model.embed([text])[0].vector
        stack.enter_context(manyheads.edit(model.model)).zero(layers=layer)
        return float(usual @ model.embed([text])[0].vector)

    with ExitStack() as stack:
        for function in (zero_heads, open_edit):
            assert "your function changes the model for good" in said("a_first_look.similarity", function)
            assert "Not yet: the vector has not" in said("a_first_look.similarity", lambda *inputs: 1.0)
            assert said("a_first_look.previous_word_head", (0, 2)).startswith("Right: ")


def test_each_copy_of_minilm_is_new(said: Callable[..., str]) -> None:
    said("a_first_look.total_weight", 0)  # opens the folder of the exercises
    check = importlib.import_module("exercises.a_first_look")
    model = check.minilm()
    zero_heads(model, "a text", 0)
    assert (check.minilm().embed(["a text"])[0].vector != model.embed(["a text"])[0].vector).any()


def test_checks_compute_with_one_thread(said: Callable[..., str]) -> None:
    threads, inside = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        said("slides.layers", lambda distance, width: inside.append(torch.get_num_threads()))
        assert (inside, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(threads)
