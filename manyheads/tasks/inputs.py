"""Conversion of the inputs that users give to a predictor: one item, or a list, column, array or generator of items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from manyheads.calls import shown
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError

STRING: Mapping[type[object], str] = {str: "a string"}


class Column(Protocol):
    """Column of a pandas or polars frame, or a NumPy array."""

    def to_numpy(self) -> object: ...


@runtime_checkable
class _Frame(Protocol):
    @property
    def columns(self) -> Iterable[object]: ...


@runtime_checkable
class _Array(Protocol):
    @property
    def ndim(self) -> int: ...


@runtime_checkable
class _Listable(Protocol):
    """Array or column of NumPy, pandas, PyTorch or Arrow. Arrow's arrays have no `ndim`."""

    def tolist(self) -> list[Any]: ...


Texts = list[str] | tuple[str, ...] | Iterator[str] | Column


def rows_of(given: object, name: str = "text", kinds: Mapping[type[object], str] = STRING) -> tuple[list[Any], bool]:
    """Return the items that a user gives to a predictor as a list, and True if the user gave a single item.

    given  one item, or a list, tuple, Series, array or generator of items
    name   name of an item in messages
    kinds  types of an item, with their descriptions for messages. A list or a tuple is never a single item

    Raises UserError for a frame or a dictionary, whose items would be the names of its columns, and ItemError for an
    item of a wrong type.
    """
    types, described = tuple(kinds), " or ".join(kinds.values())
    if isinstance(given, types) and not isinstance(given, list | tuple):
        return [given], True
    columns = given if isinstance(given, Mapping) else given.columns if isinstance(given, _Frame) else None
    if columns is not None:
        column = next((key for key in columns if key == name), next(iter(columns), name))
        variable = "data" if isinstance(given, Mapping) else "df"
        raise UserError(
            f"found {shown(given)}, whose items are columns: give one column, such as {variable}[{column!r}]"
        )
    unordered = isinstance(given, bytes | bytearray | set | frozenset)
    if unordered or not isinstance(given, Iterable) or (isinstance(given, _Array) and given.ndim != 1):
        raise UserError(f"{name} is {shown(given)}: expected {described}, or a list of them")
    items = given.tolist() if isinstance(given, _Listable) else list(given)
    for index, item in enumerate(items):
        if not isinstance(item, types):
            raise ItemError(index, f"is {shown(item)}: expected {described}", f"{name} {index + 1}")
    return items, False


def equal_rows(given: object, others: object, names: tuple[str, str]) -> tuple[list[str], list[str], bool]:
    """Return two inputs as lists of equal length, and True if the user gave two single strings.

    names  names of an item of each input in messages
    """
    (first, single), (second, other) = rows_of(given, names[0]), rows_of(others, names[1])
    if single != other:
        raise UserError(f"found one {names[0 if single else 1]}, but a list of {names[1 if single else 0]}s")
    if len(first) != len(second):
        raise UserError(f"found {len(first):,} {names[0]}s but {len(second):,} {names[1]}s: expected equal numbers")
    return first, second, single
