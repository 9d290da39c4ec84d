"""What the configurations of all models share: values of the declared types and in range, and presets by name."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

LARGEST = 2**31 - 1
TOKENS = ("pad", "end", "start", "source_pad", "unknown")  # ids, which begin at 0, as numbers of layers do


@dataclass(frozen=True)
class Config:
    """Sizes and choices of a model. Raises ValueError for a value that is not of its field's type, or out of range:
    sizes are at least 1, rates of dropout from 0 to 1, other numbers finite and, but for a bias, not negative."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, list):
                object.__setattr__(self, f.name, value := tuple(value))
            if fault := _fault(f.name, value, hints[f.name]):
                raise ValueError(f"{f.name} is {str(value)[:40]!r}: expected {fault}")


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


def _fault(name: str, value: Any, hint: Any) -> str:
    """What was expected instead; empty where the value is as declared."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        expected = [_fault(name, value, each) for each in arguments]
        return "" if "" in expected else " or ".join(expected)
    if hint is type(None):
        return "none" if value is not None else ""
    if origin is Literal:
        return "" if value in arguments else f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return "" if isinstance(value, tuple) and not any(_fault(name, v, arguments[0]) for v in value) else "a list"
    if hint is bool:
        return "" if isinstance(value, bool) else "true or false"
    if hint is str:
        return "" if isinstance(value, str) else "a name"
    least = 0 if hint is float or name in TOKENS or name.endswith("layers") else 1
    least = -LARGEST if name.endswith("bias") else least
    most = 1 if name.endswith("dropout") else LARGEST
    number = isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    if number and least <= value <= most and math.isfinite(value):
        return ""
    return f"{'a number' if hint is float else 'an integer'} from {least} to {most}"
