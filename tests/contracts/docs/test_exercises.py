"""The exercises of the tutorials: each has a solution that its check accepts, and wrong answers get a helpful hint."""

import ast
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.paths import ROOT

PAGES = ROOT / "docs" / "tutorials"
SOURCES = {path.stem.replace("-", "_"): path for path in sorted((PAGES / "source").glob("*.md"))}
EXERCISES = {name: 3 if name in ("a_first_look", "dataframe") else 6 for name in SOURCES}
FALLBACKS = re.compile(
    r"largest difference from|is too (large|small)|expected the token numbers"
)  # messages that name no mistake


def blocks(text: str, fence: str) -> list[str]:
    return re.findall(rf"^```{fence}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def parts(text: str, level: str) -> dict[str, str]:
    """Return the text below each heading of a level, by the heading."""
    found = re.split(rf"^{level} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def section(name: str) -> str:
    """Return the section with the exercises of a tutorial."""
    return parts(SOURCES[name].read_text(encoding="utf-8"), "##")["Exercises"]


def solution_pages() -> dict[str, str]:
    """Return the solutions of each tutorial: the sections of the page, by the tutorial that they link."""
    found = parts((PAGES / "solutions.md").read_text(encoding="utf-8"), "##").values()
    return {re.findall(r"\]\(([\w-]+)\.ipynb\)", text)[0].replace("-", "_"): text for text in found}


def calls(code: str) -> list[str]:
    """Return the checks that a cell calls with an answer."""
    return re.findall(r"^check\.(\w+)\(\S.*\)$", code, re.MULTILINE)


def solutions() -> dict[tuple[str, str], str]:
    """Return the code of each solution, by tutorial and check."""
    return {
        (name, check): code
        for name, text in solution_pages().items()
        for code in blocks(text, "python")
        for check in calls(code)
    }


def namespace(name: str) -> dict[str, Any]:
    """Return the names of the first cell of a tutorial's exercises."""
    names: dict[str, Any] = {}
    exec(blocks(section(name), "{code-cell} python")[0], names)
    return names


def wrong_answers(name: str) -> dict[str, list[tuple[str, str, str]]]:
    found: dict[str, list[tuple[str, str, str]]] = importlib.import_module(
        f"tests.contracts.docs.wrong_answers.{name}"
    ).WRONG
    return found


@pytest.fixture(autouse=True)
def folder_of_the_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(PAGES), *sys.path])


def verdict(code: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Execute a cell and return the last line that it prints."""
    capsys.readouterr()
    exec(compile(code, "cell", "exec"), names)
    return capsys.readouterr().out.strip().splitlines()[-1]


def answers(code: str, names: dict[str, Any]) -> list[Any]:
    """Return the answers that a cell gives to its check."""
    tree = ast.parse(code)
    call = next(
        node.value for node in tree.body if isinstance(node, ast.Expr) and ast.unparse(node).startswith("check.")
    )
    assert isinstance(call, ast.Call)
    others = ast.Module([node for node in tree.body if not isinstance(node, ast.Expr)], [])
    exec(compile(others, "cell", "exec"), names)
    return [eval(ast.unparse(given), names) for given in call.args]


CHECKS = [pytest.param(*key, id="-".join(key)) for key in solutions()]


@pytest.mark.parametrize("name", SOURCES)
def test_each_exercise_has_a_check_and_a_solution(name: str) -> None:
    given = parts(section(name), "###")
    exercises = {heading: text for heading, text in given.items() if heading.startswith("Exercise ")}
    assert [heading.split(":")[0] for heading in exercises] == [f"Exercise {n + 1}" for n in range(EXERCISES[name])]
    checks = [
        check for text in exercises.values() for cell in blocks(text, "{code-cell} python") for check in calls(cell)
    ]
    titles = [heading.split(": ", 1)[1] for heading in exercises]
    solved = parts(solution_pages()[name], "###")
    assert [title.lower() for title in solved] == [title.lower() for title in titles]
    assert [calls(code) for text in solved.values() for code in blocks(text, "python")] == [[c] for c in checks]
    assert all("..." in text for text in exercises.values())
    assert "(../solutions.md#" in section(name)


@pytest.mark.parametrize("name", SOURCES)
def test_unfinished_cells_are_reported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = namespace(name)
    for cell in blocks(section(name), "{code-cell} python")[1:]:
        assert re.match(r"Not finished: replace the \.\.\. in the (cell|function)\.", verdict(cell, names, capsys)), (
            cell
        )


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_solution_is_accepted(name: str, check: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = namespace(name)
    given = answers(solutions()[name, check], names)
    state, gradients = torch.get_rng_state(), torch.is_grad_enabled()
    capsys.readouterr()
    getattr(names["check"], check)(*given)
    assert capsys.readouterr().out.startswith("Right: ")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == gradients


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_wrong_answers_get_a_hint(name: str, check: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = wrong_answers(name)[check]
    assert len(wrong) >= 3
    for old, new, hint in wrong:
        assert old in solutions()[name, check], old
        found = verdict(solutions()[name, check].replace(old, new), namespace(name), capsys)
        assert found.startswith(("Not yet: ", "Not finished: ")), f"{old!r} -> {new!r}: {found}"
        assert hint in found, f"{old!r} -> {new!r}: {found}"
        assert not FALLBACKS.search(found)


INFINITY, NAN = float("inf"), float("nan")
SOURCES_OF_NAN: list[tuple[Callable[[torch.Tensor], Any], str]] = [
    (lambda x: x.mul(0) * INFINITY, "a product of 0 and infinity"),
    (lambda x: -INFINITY * x.mul(0), "a product of 0 and infinity"),
    (lambda x: x.mul_(0).mul_(INFINITY), "a product of 0 and infinity"),
    (lambda x: x.add(INFINITY) - INFINITY, "a difference of two infinite numbers"),
    (lambda x: x.add(INFINITY) + -INFINITY, "a sum of infinity and minus infinity"),
    (lambda x: x.mul(0).div_(0), "0 divided by 0"),
    (lambda x: 0 / x.mul(0), "0 divided by 0"),
    (lambda x: torch.div(x * INFINITY, other=x * INFINITY), "infinity divided by infinity"),
    (lambda x: torch.softmax(x - INFINITY, dim=0), "a softmax of scores that are all minus infinity"),
    (lambda x: torch.nn.functional.softmax(dim=0, input=x.add(INFINITY)), "a softmax of an infinite score"),
    (lambda x: x * NAN, ""),
    (lambda x: torch.tensor([NAN]) * x, ""),
    (lambda x: x.fill_(NAN) / 0, ""),
    (lambda x: x.neg().log() * INFINITY, ""),
    (lambda x: x.mul_(0).div_(x), ""),
    (lambda x: torch.func.vmap(lambda row: row / row.sum())(x[None]), ""),
    (lambda x: x.to("meta") / 0, ""),
]


@pytest.mark.parametrize(("function", "cause"), SOURCES_OF_NAN)
def test_first_nan_has_a_cause_only_if_it_is_certain(function: Callable[[torch.Tensor], Any], cause: str) -> None:
    checking = importlib.import_module("exercises.checking")
    with checking.Operations() as used:
        function(torch.ones(3))
    assert used.nan == (f"The first NaN comes from {cause}." if cause else "")


def changed(given: Any, change: Callable[[Any], Any]) -> Any:
    """Return an answer, or a function with answers, after a change."""
    is_function = callable(given) and not isinstance(given, torch.nn.Module)
    return (lambda *inputs: change(given(*inputs))) if is_function else change(given)


def not_a_number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() * float("nan")
    return type(value)(map(not_a_number, value)) if isinstance(value, list | tuple) else float("nan")


def longer(value: Any) -> Any:
    return value[None] if isinstance(value, torch.Tensor) else [*value, value[-1]]


def has_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(map(has_numbers, value))
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.dtype != torch.bool)


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_other_types_shapes_and_nan_are_reported(name: str, check: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = namespace(name)
    run = getattr(names["check"], check)
    *others, given = answers(solutions()[name, check], names)

    def said(change: Callable[[Any], Any]) -> str:
        capsys.readouterr()
        run(*others, changed(given, change))
        return capsys.readouterr().out.strip()

    assert re.match(r"Not yet: expected .*, found (a set|\{)", said(lambda _: {1j})), said(lambda _: {1j})
    results: list[Any] = []

    def kept(value: Any) -> Any:
        results.append(value)
        return value

    said(kept)
    if has_numbers(results[0]):
        assert re.search(r"^Not yet: .*(nan|NaN)", said(not_a_number)), said(not_a_number)
        if isinstance(results[0], torch.Tensor | list | tuple):
            assert re.search(r"^Not yet: .*expected .*(shape|numbers?).*, found ", said(longer)), said(longer)
    if callable(given) and not isinstance(given, torch.nn.Module):
        capsys.readouterr()
        run(lambda *inputs: [][len(inputs)])
        assert "Not yet: your function raised IndexError: list index out of range" in capsys.readouterr().out
        run(lambda *inputs: None)
        assert "your function returns None" in capsys.readouterr().out
        run(5)
        assert "Not yet: expected a function, found an int" in capsys.readouterr().out


JUNK: list[Any] = [
    None, True, 5, -1.0, 10**400, "text", b"", [], {}, {"a": 1}, [[]], [1, [2]], (1, 2), [None] * 3, 3j, object(), int,
    torch.zeros(0), torch.tensor(1), torch.zeros(3, 3), torch.zeros(2, 3, 4, 5), torch.tensor([True]),
    torch.zeros(3) * 1j, torch.zeros(3, 3, device="meta"), torch.zeros(3).to_sparse(), np.zeros(3), np.array("x"),
    np.float64("nan"), pd.DataFrame(), pd.Series([1, 2]), range(3), torch.nn.Linear(2, 3), torch.nn.Embedding(8, 8),
]  # fmt: skip


@pytest.mark.parametrize(("name", "check"), CHECKS)
def test_no_answer_raises(name: str, check: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = namespace(name)
    *others, _ = answers(solutions()[name, check], names)
    run = getattr(names["check"], check)
    for junk in JUNK:
        if check == "one_layer" and isinstance(junk, int | float):
            continue  # a training
        for answer in (junk, lambda *inputs, junk=junk: junk, [junk] * 2, [junk] * 3):
            capsys.readouterr()
            run(*others, answer)
            printed = capsys.readouterr().out
            assert re.fullmatch(r"Not yet: .*\n", printed), (answer, junk, printed)
