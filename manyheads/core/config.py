"""Base class and validation of configurations. Each field declares its type and its range.

    @dataclass(frozen=True)
    class GPTConfig(Config):
        vocab: Vocabulary
        end: TokenId | None = None      # a token id below `vocab`, or None
        width: Size = 768
        heads: Heads = 12               # divides `width`
        dropout: Rate = 0.1

Every number has a maximum, so that a mistyped value is rejected before data is read or memory is allocated.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from manyheads.errors import UserError, similar
from manyheads.files import JsonMapping, JsonObject

Hint: TypeAlias = Any  # a type, or a form such as `int | None`; types themselves have no common type
UNIONS: tuple[Hint, ...] = (Union, types.UnionType)


class DataclassInstance(Protocol):
    """Instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


MAX_PARAMETERS = 10**12  # maximum number of parameters of a model; for comparison, GPT-3 has 1.75e11

# precisions in which a saved model can be loaded, from the finest to the coarsest; "auto" selects one of them
Precision = Literal["float32", "bf16", "int8", "auto"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
TRAINING_PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")  # precisions in which models can be trained


@dataclass(frozen=True)
class Range:
    """Range check for numbers from `minimum` to `maximum`.

    above  True: the minimum itself is not allowed
    below  True: the maximum itself is not allowed
    """

    minimum: float
    maximum: float
    above: bool = False
    below: bool = False

    def contains(self, value: float) -> bool:
        above_minimum = value > self.minimum if self.above else value >= self.minimum
        return above_minimum and (value < self.maximum if self.below else value <= self.maximum)

    def violation(self, value: float, config: DataclassInstance) -> str:
        return "" if self.contains(value) else str(self)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.minimum} and {'below' if self.below else 'at most'} {self.maximum}"
        return f"from {self.minimum} to {'below ' if self.below else ''}{self.maximum}"


@dataclass(frozen=True)
class Below:
    """Range check for a number that must be at least 0 and less than the value of an earlier field.

    An example is a token id, which must be less than the vocabulary size.
    """

    field: str

    def violation(self, value: int, config: DataclassInstance) -> str:
        size = vars(config)[self.field]
        return "" if 0 <= value < size else f"from 0 to below {self.field} ({size})"


@dataclass(frozen=True)
class Divides:
    """Check that a number divides the value of an earlier field, as the number of heads must divide the width."""

    field: str

    def violation(self, value: int, config: DataclassInstance) -> str:
        dividend = vars(config)[self.field]
        return f"that divides {self.field} ({dividend})" if dividend % value else ""


@dataclass(frozen=True)
class Odd:
    """Check that a number is odd, as a kernel size must be: a kernel reaches equally far to both sides."""

    def violation(self, value: int, config: DataclassInstance) -> str:
        return "" if value % 2 else "that is odd, so that it reaches equally far to both sides"


@dataclass(frozen=True)
class Distinct:
    """Check that a list contains distinct names, and at least `min_length` of them."""

    min_length: int = 0

    def violation(self, value: tuple[str, ...], config: DataclassInstance) -> str:
        # A model that predicts a number has one label, and a model with several labels per item may have one.
        min_length = self.min_length if vars(config).get("target", "classes") == "classes" else 1
        fits = len(value) >= min_length and len(set(value)) == len(value)
        if fits:
            return ""
        return f"of at least {min_length} distinct names" if min_length else "of distinct names"


@dataclass(frozen=True)
class FitsLabels:
    """Check that a target fits the number of labels in the configuration."""

    def violation(self, value: str, config: DataclassInstance) -> str:
        labels = vars(config)["labels"]
        count = len(labels) if isinstance(labels, tuple | list) else 1  # The field `labels` is checked next.
        fits = value == "classes" or (count == 1 if value == "regression" else count > 0)
        return "" if fits else f"that fits the number of labels, {count} (a regression has one)"


Size = Annotated[int, Range(1, 2**20)]  # length of a feature vector: model width, hidden units, channels
OddSize = Annotated[int, Range(1, 2**20), Odd()]
Layers = Annotated[int, Range(1, 1000)]
Heads = Annotated[int, Range(1, 2**12), Divides("width")]
Length = Annotated[int, Range(1, 1_000_000)]  # number of tokens in a text
Pixels = Annotated[int, Range(1, 100_000)]
Vocabulary = Annotated[int, Range(1, 10_000_000)]
TokenId = Annotated[int, Below("vocab")]
Count = Annotated[int, Range(1, 10**9)]  # number of steps, epochs or items; a large value costs time, but no memory
Rate = Annotated[float, Range(0, 1)]  # value from 0 to 1: a fraction or a probability
Positive = Annotated[float, Range(0, 10**9, above=True)]
Epsilon = Annotated[float, Range(0, 1)]
Labels = Annotated[tuple[str, ...], Distinct()]
Classes = Annotated[tuple[str, ...], Distinct(2)]  # labels of a classifier, at least two
# Meaning of the outputs of a model: one label per item, one number per item, or any number of labels per item
TargetKind = Literal["classes", "regression", "multi-label"]
LabelType = Literal["str", "int", "float", "bool"]  # types of labels that JSON can name


class FieldError(UserError):
    """Error for an invalid value of a configuration field.

    `fault` is the part of the message that follows the name of the field.
    """

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(f"{field} {fault}")
        self.field, self.fault = field, fault


@dataclass(frozen=True)
class Config:
    """Base class of model configurations. Raises UserError if a value does not match its field's type and range."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class LabelConfig(Config):
    """Base class of the configurations of models with labels.

    target  meaning of the logits. "classes": one label per item; "regression": one number, whose only label has no
            meaning; "multi-label": any number of labels
    """

    target: Annotated[TargetKind, FitsLabels()] = field(default="classes", kw_only=True)


def check_fields(config: DataclassInstance) -> None:
    """Raise FieldError (a UserError) for the first field whose value has a wrong type or is out of range.

    Lists, as read from JSON, become tuples if the field is declared as a tuple.
    """
    hints = field_types(type(config))
    for name, value in values(config).items():
        if isinstance(value, list) and tuple in types_of(hints[name]):
            object.__setattr__(config, name, value := tuple(value))
        if wanted := expected(value, hints[name], config):
            raise FieldError(name, f"is {repr(value)[:40]}: expected {wanted}")


def values(config: DataclassInstance) -> JsonObject:
    """Return the values of a configuration by the names of its fields."""
    return {f.name: vars(config)[f.name] for f in fields(config)}


def as_dict(config: DataclassInstance) -> JsonObject:
    """Convert a configuration to nested dictionaries and lists for JSON or YAML."""
    return {name: plain(value) for name, value in values(config).items()}


def plain(value: object) -> object:
    """Convert a value, and all values in it, to values that JSON and YAML can represent."""
    if is_config(value):
        return as_dict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def is_config(value: object) -> TypeGuard[DataclassInstance]:
    """Return True for a configuration, which may be a part of another one."""
    return is_dataclass(value) and not isinstance(value, type)


def missing_fields(config: DataclassInstance, saved: JsonMapping) -> list[str]:
    """Return the dotted names of the fields of a configuration that are missing in its saved form.

    saved  saved form, as `as_dict` returns it
    """
    missing = []
    for name, value in values(config).items():
        if name not in saved:
            missing.append(name)
        elif is_config(value) and isinstance(saved[name], Mapping):
            missing += [f"{name}.{inner}" for inner in missing_fields(value, saved[name])]
    return missing


@cache
def field_types(config: type[DataclassInstance]) -> dict[str, Hint]:
    """Return the types of a configuration's fields, with their ranges."""
    hints = get_type_hints(config, include_extras=True)
    return {f.name: hints[f.name] for f in fields(config)}


def types_of(hint: Hint) -> list[Hint]:
    """Return the types that a type hint allows; a union allows several.

    For `tuple[Size, ...]` the result is `tuple`.
    """
    origin: Hint = get_origin(hint)
    if origin in UNIONS:
        return [member_type for member in get_args(hint) for member_type in types_of(member)]
    return types_of(get_args(hint)[0]) if origin is Annotated else [origin or hint]


_NAMES: dict[Hint, str] = {
    int: "an integer", float: "a number", bool: "true or false", str: "a name", tuple: "a list",
    dict: "a mapping such as {name: value}", Path: "a path", type(None): "none", Literal: "a value",
}  # fmt: skip


def expected(value: object, hint: Hint, config: DataclassInstance | None = None) -> str:
    """Return a description of the value that a field expects, or an empty string if the value is valid.

    hint    type of the field, with its ranges
    config  configuration with all values, for ranges that depend on other fields. If None, only the type is checked
    """
    origin: Hint = get_origin(hint)
    arguments = get_args(hint)
    if origin in UNIONS:
        groups = [member for member in arguments if type(value) in (tuple, dict) and type(value) in types_of(member)]
        wanted = [expected(value, member, config) for member in groups or arguments]
        return "" if "" in wanted else " or ".join(wanted)
    if origin is Annotated:
        base, *limits = arguments
        if wrong_type := expected(value, base, config):
            return " ".join([wrong_type, *(str(limit) for limit in limits if isinstance(limit, Range))])
        if config is None:
            return ""
        name = _NAMES[get_origin(base) or base]
        return next((f"{name} {violation}" for limit in limits if (violation := limit.violation(value, config))), "")
    if origin is Literal:
        fits = any(value == choice and type(value) is type(choice) for choice in arguments)
        names = list(map(str, arguments))
        close = f" (did you mean {near}?)" if isinstance(value, str) and (near := similar(value, names)) else ""
        return "" if fits else f"one of {', '.join(names)}{close}"
    if origin is tuple:
        return _expected_items(value, arguments, config)
    if hint is Any:
        return ""
    accepted_types: Hint = {float: (int, float), Path: (str, Path)}.get(hint, origin or hint)
    fits = isinstance(value, accepted_types) and (hint not in (int, float) or not isinstance(value, bool))
    if hint is float and isinstance(value, float):
        fits = abs(value) < math.inf
    if isinstance(value, dict) and dict in (origin, hint):
        fits = all(isinstance(name, str) for name in value)
        for name, item in value.items() if arguments else ():
            if wanted_item := expected(item, arguments[1], config):
                return f"a mapping with each value {wanted_item}, but {name!r} is {item!r}"
    return "" if fits else _NAMES.get(origin or hint) or f"a {hint.__name__}"


def _expected_items(value: object, arguments: tuple[Hint, ...], config: DataclassInstance | None) -> str:
    """Return a description of the tuple that was expected, or an empty string if the value is valid.

    A tuple hint has either one type for any number of items (`tuple[Size, ...]`) or one type for each item.
    """
    if not isinstance(value, tuple):
        return "a list"
    hints = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
    if len(hints) != len(value):
        return f"a list of {len(hints)} items"
    for index, (item, item_hint) in enumerate(zip(value, hints, strict=True), 1):
        if wanted := expected(item, item_hint, config):
            return f"a list with each item {wanted}, but item {index} is {item!r}"
    return ""
