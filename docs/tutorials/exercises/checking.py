"""The part of a check that all exercises share.

A check is a function with the decorator `exercise`. It gets the reader's answer, raises `Mistake` with a hint if the
answer is wrong, and returns one sentence if it is right. The reader sees one line in each case, and never a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MANY = 10**6  # no answer needs a tensor with more numbers


@contextmanager
def seeded() -> Iterator[None]:
    """Compute with gradients, a fixed seed and one thread. Random state, gradient mode and threads outside stay as is.

    On a busy machine, several threads wait for each other, and small models train many times more slowly.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.default_generator.manual_seed(1)
            yield
    finally:
        torch.set_num_threads(threads)


class Mistake(Exception):
    """A message for the reader about a wrong answer."""


def exercise(check: Callable[..., str]) -> Callable[..., None]:
    """Make a check print its verdict. It runs with a fixed seed."""

    @wraps(check)
    def verdict(*answers: object) -> None:
        try:
            if any(map(_unfinished, answers)):
                raise Mistake("replace the ... in the cell.")
            with seeded():
                print("Right:", check(*answers))
        except Mistake as mistake:
            print("Not finished:" if "replace the ..." in str(mistake) else "Not yet:", mistake)
        except (Exception, SystemExit) as error:  # such as a model that fails in its training
            print(f"Not yet: the check cannot read this answer: {_first_line(error)}.")

    return verdict


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    line = f"{type(error).__name__}: {text[0].rstrip('.')}" if text else type(error).__name__
    return shorten(line)


def shorten(text: str) -> str:
    """Return the first 200 characters of a text."""
    return text if len(text) <= 200 else f"{text[:197]}..."


def _unfinished(answer: object) -> bool:
    if isinstance(answer, Mapping):
        answer = tuple(answer.values())
    return answer is ... or (isinstance(answer, list | tuple) and any(map(_unfinished, answer)))


def kind(answer: object) -> str:
    """Return the type of an answer with its article, such as "a list", or the shape of a tensor."""
    if isinstance(answer, Tensor):
        return f"a tensor of shape {tuple(answer.shape)}"
    name = "None" if answer is None else type(answer).__name__
    an = name.lower().startswith(("a", "e", "i", "o", "nd"))  # an ndarray, but a uint8
    return name if answer is None else f"an {name}" if an else f"a {name}"


def call(function: object, *inputs: object) -> object:
    """Return the result of the reader's function. It gets copies of tensors, lists and dicts."""
    if not callable(function):
        raise Mistake(f"expected a function, found {kind(function)}. Pass the function itself, without parentheses.")
    copies = [value.clone() if isinstance(value, Tensor) else value for value in inputs]
    copies = [deepcopy(value) if isinstance(value, list | dict) else value for value in copies]
    try:
        result: object = function(*copies)
    except Mistake:  # of a forbidden function
        raise
    except (Exception, SystemExit) as error:
        raise Mistake(f"your function raised {_first_line(error)}.") from None
    if _unfinished(result):
        raise Mistake("replace the ... in the function.")
    if result is None:
        raise Mistake("your function returns None. Add a return statement.")
    if isinstance(result, Tensor):
        _check_storage(result)
    return result


class Operations(TorchFunctionMode):
    """Observe the PyTorch functions that an answer calls inside the `with` block.

    names  names of all called functions
    nan    a sentence about the first operation whose inputs contain no NaN and whose result contains NaN. Empty if
           there is none, or if its cause is unknown
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.nan = ""
        self.found_nan = False

    def __torch_function__(self, function: Any, types: Any, inputs: Any = (), settings: Any = None) -> Any:
        name = function.__name__.strip("_")
        self.names.add(name)
        values = (*inputs, *(settings or {}).values())
        had_nan = any(map(_has_nan, values))  # before the call, which may change its inputs
        result = function(*inputs, **(settings or {}))
        if not self.found_nan and not had_nan and _has_nan(result):
            self.found_nan = True
            operands = [value for value in values if isinstance(value, Tensor | int | float) and value is not result]
            if cause := _cause_of_nan(name, operands, result):
                self.nan = f"The first NaN comes from {cause}."
        return result


def _has_nan(value: object) -> bool:
    if isinstance(value, Tensor) and value.numel() > MANY:
        return False
    try:
        return value != value if isinstance(value, float) else isinstance(value, Tensor) and bool(value.isnan().any())
    except RuntimeError:  # a tensor without numbers: on the device "meta", or inside vmap
        return False


def _cause_of_nan(name: str, operands: list[Any], result: Tensor) -> str:
    """Return the only operation on numbers with which a function can get NaN from operands without NaN."""
    if name in ("mul", "multiply"):
        return "a product of 0 and infinity"
    if name in ("sub", "rsub", "subtract"):
        return "a difference of two infinite numbers"
    if name in ("add", "radd"):
        return "a sum of infinity and minus infinity"
    if name in ("div", "rdiv", "divide", "true_divide") and operands:
        divided_by = torch.as_tensor(operands[-1]).expand_as(result)[result.isnan()]
        return "infinity divided by infinity" if divided_by.isinf().all() else "0 divided by 0"
    if name in ("softmax", "log_softmax"):
        infinite = any(isinstance(value, Tensor) and value.isposinf().any() for value in operands)
        return "a softmax of an infinite score" if infinite else "a softmax of scores that are all minus infinity"
    return ""


def number(answer: object, what: str = "the answer") -> float:
    """Return an answer that must be one finite number."""
    # The shape comes first: an expanded tensor can have more numbers than the memory.
    value = answer.tolist() if hasattr(answer, "tolist") and getattr(answer, "shape", None) == () else answer
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mistake(f"expected {what} as one number, found {kind(answer)}.")
    if isinstance(value, int) and abs(value) > 10**300:
        raise Mistake(f"expected a smaller number for {what}, found one with more than 300 digits.")
    value = float(value)
    if value != value or value in (float("inf"), float("-inf")):
        raise Mistake(f"expected a finite number for {what}, found {value}.")
    return value


def is_vector(answer: object) -> TypeGuard[Sequence[object]]:
    """Return True for a list, a tuple, and for a tensor or an array with one axis."""
    shape = getattr(answer, "shape", None)
    return isinstance(answer, list | tuple) or (isinstance(shape, tuple) and len(shape) == 1)


def numbers(answer: object, count: int, what: str = "the answer") -> tuple[float, ...]:
    """Return an answer that must be a list, a tuple or an array of `count` finite numbers."""
    if not is_vector(answer):
        raise Mistake(f"expected {what} as a list of {count} numbers, found {kind(answer)}.")
    if len(answer) != count:
        raise Mistake(f"expected {count} numbers for {what}, found {len(answer)}.")
    return tuple(number(value, f"number {index} of {what}") for index, value in enumerate(answer, 1))


def choice(answer: object, options: tuple[str, ...]) -> str:
    """Return an answer that must be one of some words."""
    if not isinstance(answer, str) or answer not in options:
        found = shorten(repr(answer)) if isinstance(answer, str) else kind(answer)
        raise Mistake(f"expected one of {', '.join(map(repr, options))}, found {found}.")
    return answer


def tensor(answer: object, shape: tuple[int, ...] | None = None, nan: str = "") -> Tensor:
    """Return an answer that must be a tensor of finite numbers.

    shape  expected shape. By default, any shape
    nan    hint about the cause of NaN
    """
    if not isinstance(answer, Tensor):
        raise Mistake(f"expected a torch.Tensor, found {kind(answer)}.")
    _check_storage(answer)
    if shape is not None and answer.shape != shape:
        raise Mistake(f"expected a tensor of shape {shape}, found {tuple(answer.shape)}.")
    if not answer.isfinite().all():
        if answer.isnan().any():
            raise Mistake(f"the result contains NaN. {nan}".strip())
        raise Mistake("the result contains infinite numbers.")
    return answer.detach().double()


def _check_storage(answer: Tensor) -> None:
    if answer.layout != torch.strided:
        raise Mistake("expected a dense tensor, found a sparse one. Call to_dense().")
    if answer.is_meta:
        raise Mistake("the tensor is on the device meta, so it has no numbers.")
    if answer.is_complex():
        raise Mistake("expected a tensor of real numbers, found complex numbers.")


def compare(
    answer: object, expected: Tensor, mistakes: Mapping[str, Tensor], *, tolerance: float = 1e-5, nan: str = ""
) -> None:
    """Raise `Mistake` if an answer differs from the expected tensor.

    mistakes  results of known mistakes, by the hint that explains each of them. Their shapes may differ from the
              expected shape
    """
    if isinstance(answer, Tensor):
        for hint, wrong in mistakes.items():
            if equal(answer, wrong, tolerance) and not equal(wrong, expected, tolerance):
                raise Mistake(hint)
    found = tensor(answer, tuple(expected.shape), nan)
    if not equal(found, expected, tolerance):
        difference = (found - expected.double()).abs()
        index = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
        raise Mistake(
            f"the largest difference from the expected result is {difference.max():.2g}, at index {list(index)}."
        )


def equal(first: Tensor, second: Tensor, tolerance: float) -> bool:
    """Return True if two tensors have the same shape and differ at most by the tolerance."""
    same = first.shape == second.shape
    return same and torch.allclose(first.detach().double(), second.detach().double(), tolerance, tolerance)


def compare_numbers(
    answer: object,
    expected: Sequence[float],
    mistakes: Mapping[str, Sequence[float | None]],
    names: Sequence[str] = (),
    tolerance: float = 1e-6,
) -> None:
    """Raise `Mistake` if an answer, a number or a list of numbers, differs from the expected numbers.

    mistakes   results of known mistakes, by the hint that explains each of them; None fits any number
    names      names of the numbers
    tolerance  relative difference that is still right
    """

    def close(value: float, other: float | None) -> bool:
        return other is None or abs(value - other) <= tolerance * max(1.0, abs(other))

    count = len(expected)
    found: tuple[float, ...] = (number(answer, *names),) if count == 1 else numbers(answer, count)
    if all(map(close, found, expected)):
        return
    for hint, wrong in mistakes.items():
        if all(map(close, found, wrong)):
            raise Mistake(hint)
    for index, (value, right) in enumerate(zip(found, expected, strict=True)):
        if not close(value, right):
            name = names[index] if names else f"number {index + 1}"
            raise Mistake(f"{name} is too {'large' if value > right else 'small'}: {value:g}.")
