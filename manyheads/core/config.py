"""What all configurations share: every field states its type and its range, and one walker checks them.

    @dataclass(frozen=True)
    class GPTConfig(Config):
        vocab: Vocabulary
        end: TokenId | None = None      # an id of `vocab`, or none
        width: Size = 768
        heads: Heads = 12               # divides `width`
        dropout: Rate = 0.1

Every number has a largest value, so that a mistyped one is told before anything is read or allocated.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

LARGEST_PARAMETERS = 10**12  # of a model; GPT-3 has 1.75e11


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`; `above` leaves out the least, `below` the most."""

    least: float
    most: float
    above: bool = False
    below: bool = False

    def contains(self, value: float) -> bool:
        over = value > self.least if self.above else value >= self.least
        return over and (value < self.most if self.below else value <= self.most)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.least} and {'below' if self.below else 'at most'} {self.most}"
        return f"from {self.least} to {'below ' if self.below else ''}{self.most}"


@dataclass(frozen=True)
class Below:
    """Numbers from 0 to below the value of another field, which stands before this one: ids of a vocabulary."""

    field: str


@dataclass(frozen=True)
class Divides:
    """Numbers that divide the value of another field, which stands before this one."""

    field: str


@dataclass(frozen=True)
class Different:
    """Names of which none is there twice, `least` or more."""

    least: int = 0


Size = Annotated[int, Range(1, 2**20)]  # of a vector: the width of a model, its hidden units, channels
Layers = Annotated[int, Range(1, 1000)]
Heads = Annotated[int, Range(1, 2**12), Divides("width")]
Length = Annotated[int, Range(1, 1_000_000)]  # of a text in tokens
Pixels = Annotated[int, Range(1, 100_000)]
Vocabulary = Annotated[int, Range(1, 10_000_000)]
TokenId = Annotated[int, Below("vocab")]
Count = Annotated[int, Range(1, 10**9)]  # of what takes time, not memory: steps, epochs, items
Rate = Annotated[float, Range(0, 1)]  # a share or a probability
Positive = Annotated[float, Range(0, 10**9, above=True)]
Epsilon = Annotated[float, Range(0, 1)]
Labels = Annotated[tuple[str, ...], Different()]
Classes = Annotated[tuple[str, ...], Different(2)]  # labels of a classifier, which tells two or more apart


@dataclass(frozen=True)
class Config:
    """Sizes and choices. Raises ValueError for a value that is not what its field states."""

    def __post_init__(self) -> None:
        checked(self)


def checked(config: Any) -> None:
    """Raises ValueError, with the field's name, for the first field of a dataclass whose value is not of its stated
    type and range. Lists, as JSON gives them, become tuples where tuples are stated."""
    kind: Any = type(config)
    for name, hint in _hints(kind).items():
        value = getattr(config, name)
        if isinstance(value, list) and tuple in _kinds(hint):
            object.__setattr__(config, name, value := tuple(value))
        if expected := _expected(value, hint, config):
            raise ValueError(f"{name} is {repr(value)[:40]}: expected {expected}")


C = TypeVar("C", bound=Config)


def from_preset(
    config: type[C], presets: Mapping[str, Mapping[str, Any]], name: str, overrides: Mapping[str, Any]
) -> C:
    """The configuration of that name with other values where `overrides` has some."""
    if name not in presets:
        raise ValueError(f"unknown preset {name!r}: valid are {', '.join(presets)}")
    known = [f.name for f in fields(config)]
    if unknown := set(overrides) - set(known):
        raise ValueError(f"unknown settings {', '.join(sorted(unknown))}: valid are {', '.join(sorted(known))}")
    return config(**{**presets[name], **overrides})


@cache
def _hints(config: Any) -> dict[str, Any]:
    hints = get_type_hints(config, include_extras=True)
    return {f.name: hints[f.name] for f in fields(config)}


def _kinds(hint: Any) -> list[Any]:
    """The types that a hint, or the members of a union, begin with."""
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for member in get_args(hint) for kind in _kinds(member)]
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    return [get_origin(hint) or hint]


def _expected(value: Any, hint: Any, config: Any) -> str:
    """What was expected instead of the value; empty where it is as stated."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        expected = [_expected(value, member, config) for member in arguments]
        return "" if "" in expected else " or ".join(expected)
    if origin is Annotated and arguments[0] in (int, float):
        return _expected_number(value, arguments[0], arguments[1:], config)
    if origin is Annotated:
        return _expected(value, arguments[0], config) or _expected_names(value, arguments[1])
    if origin is Literal:
        return "" if value in arguments else f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return _expected_items(value, arguments, config)
    if hint in (int, float):
        return _expected_number(value, hint, (), config)
    if hint is Any:
        return ""
    kind = (str, Path) if hint is Path else origin or hint
    return "" if isinstance(value, kind) else _NAMES.get(origin or hint) or f"a {hint.__name__}"


_NAMES: dict[Any, str] = {
    type(None): "none", bool: "true or false", str: "a name", Path: "a path", dict: "a mapping",
}  # fmt: skip


def _expected_items(value: Any, arguments: tuple[Any, ...], config: Any) -> str:
    """Of a tuple: any number of one kind (`tuple[Size, ...]`), or one of each that is stated."""
    if not isinstance(value, tuple):
        return "a list"
    kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
    if len(kinds) != len(value):
        return f"a list of {len(kinds)}"
    faults = [fault for item, kind in zip(value, kinds, strict=True) if (fault := _expected(item, kind, config))]
    return f"a list, each {faults[0]}" if faults else ""


def _expected_names(value: tuple[str, ...], limit: Different) -> str:
    if len(value) >= limit.least and len(set(value)) == len(value):
        return ""
    return f"{limit.least} or more different names" if limit.least else "different names"


def _expected_number(value: Any, kind: type, limits: tuple[Any, ...], config: Any) -> str:
    named = "an integer" if kind is int else "a number"
    span = next((limit for limit in limits if isinstance(limit, Range)), None)
    number = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if not number or not (abs(value) < math.inf if span is None else span.contains(value)):
        return named if span is None else f"{named} {span}"
    for limit in limits:
        other = 0 if isinstance(limit, Range) else getattr(config, limit.field)
        if isinstance(limit, Below) and not 0 <= value < other:
            return f"{named} from 0 to below {limit.field} ({other})"
        if isinstance(limit, Divides) and other % value:
            return f"a divisor of {limit.field} ({other})"
    return ""
