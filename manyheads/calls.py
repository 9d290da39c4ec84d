"""Checks of calls by users: unknown options and values of a wrong type raise one clear error.

`checked` wraps a function. `checked_methods` is a class decorator that wraps all public methods of a class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from manyheads.core.config import Hint
from manyheads.errors import UserError, nearest

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=type)

# type of a parameter -> (type of its valid values, description). For other types, valid values are their instances.
_KINDS: dict[Hint, tuple[Hint, str]] = {
    int: (Integral, "a whole number"), float: (Real, "a number"), bool: (bool, "True or False"), str: (str, "a string"),
    Path: (PathLike, "a path"), NoneType: (NoneType, "None"), dict: (dict, "a dictionary"),
    Callable: (Callable, "a function"), Sequence: (Iterable, "a list"), Iterable: (Iterable, "a list"),
}  # fmt: skip


def checked_methods(kind: K) -> K:
    """Class decorator that applies `checked` to each public method that the class itself defines."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, checked(method))
    return kind


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that checks its arguments by their type hints before it calls `function`.

    An unknown option raises TypeError with the most similar valid name. If a type hint consists only of classes, such
    as `int | None`, a value of another type raises UserError. An error about one row of a pandas Series names the label
    of the row.
    """
    signature = _signature(function)

    @cache
    def hints() -> dict[str, Hint]:
        return {name: _hint(parameter.annotation, function) for name, parameter in signature.parameters.items()}

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        valid = [name for name in signature.parameters if name != "self"]
        for name in options:
            if name not in valid:
                raise TypeError(f"{function.__qualname__}() has no option {name!r}: {nearest(name, valid)}")
        given = dict(zip(signature.parameters, args, strict=False)) | options
        for name, value in given.items():
            if expected := _expected(value, hints()[name]):
                raise UserError(f"{name} is {shown(value)}: expected {expected}")
        try:
            return function(*args, **options)
        except UserError as error:
            for labels in (getattr(value, "index", None) for value in given.values()):
                if error.index is not None and labels is not None and not callable(labels):
                    raise UserError(f"{error} (index label {labels[error.index]})") from None
            raise

    call.__signature__ = signature  # type: ignore[attr-defined]  # Editors show it and complete its names.
    return call


def shown(value: object) -> str:
    """Return a short description of a value for an error message."""
    simple = value is None or isinstance(value, str | bytes | Real)
    return repr(value)[:60] if simple else f"a {type(value).__name__}"


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function, with a separate parameter for each key of `**options: Unpack[...]`."""
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    if last.kind is not last.VAR_KEYWORD:
        return signature
    (options,) = get_args(_hint(last.annotation, function))
    keys = get_type_hints(options)
    more = [inspect.Parameter(key, last.KEYWORD_ONLY, default=..., annotation=keys[key]) for key in keys]
    return signature.replace(parameters=[*others, *more])


def _hint(annotation: Hint, function: Callable[..., object]) -> Hint:
    """Return the type hint of a parameter; Any if it has none, or if only type checkers import the name of the type."""
    if annotation is inspect.Parameter.empty:
        return Any
    try:
        annotations = SimpleNamespace(__annotations__={"it": annotation})
        return get_type_hints(annotations, inspect.unwrap(function).__globals__)["it"]
    except NameError:
        return Any


def _expected(value: object, hint: Hint) -> str:
    """Return a description of the expected value; an empty string if the value is valid.

    Only hints that are classes or unions of classes are checked. For Any, protocols and literals, all values are valid.
    """
    origin: Hint = get_origin(hint)
    members = get_args(hint) if origin in (Union, UnionType) else (hint,)
    kinds = [get_origin(member) or member for member in members]
    checkable = all(isinstance(k, type) and k is not Any and not getattr(k, "_is_protocol", False) for k in kinds)
    if not checkable or any(_fits(value, kind) for kind in kinds):
        return ""
    return " or ".join(dict.fromkeys(_KINDS.get(kind, (kind, f"a {kind.__name__}"))[1] for kind in kinds))


def _fits(value: object, kind: Hint) -> bool:
    """Return True if a value is an instance of a type.

    In contrast to `isinstance`, True and NaN are not numbers, and strings and dictionaries are not sequences.
    """
    if kind in (Sequence, Iterable) and (isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) == 0):
        return False
    if isinstance(value, bool) or (isinstance(value, Real) and value != value):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, _KINDS.get(kind, (kind,))[0])
