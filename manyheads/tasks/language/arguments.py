"""Checks of the arguments of text generation: seeds, stop strings and whole numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import SupportsIndex

from manyheads.errors import UserError

MAX_SEED = 2**63 - 1


def stop_strings(stop: str | Sequence[str] | None) -> list[str]:
    """Return the stop strings as a list. Raise UserError for values that are not strings."""
    stops = [stop] if isinstance(stop, str) else stop or ()
    if not isinstance(stops, Collection) or not all(isinstance(text, str) for text in stops):
        raise UserError(f"stop is {stop!r}: expected a string, a list of strings, or None")
    return [*stops]


def seeds_of(seed: SupportsIndex | Sequence[SupportsIndex], count: int) -> list[int]:
    """Return one seed for each of `count` texts.

    seed  a list of one seed per text, or the seed of the first text, which increases by one for each further text
    """
    if isinstance(seed, Iterable) and not isinstance(seed, bytes | dict):
        seeds = [check_integer("seed", number, 0, MAX_SEED) for number in seed]
    else:
        seeds = [check_integer("seed", seed, 0, MAX_SEED) + i for i in range(count)]
    if len(seeds) != count:
        raise UserError(f"found {len(seeds)} seeds for {count} texts: give one for each text, or a single number")
    return seeds


def check_integer(name: str, value: object, minimum: int, maximum: int) -> int:
    """Return a number as an int. NumPy integers are valid.

    Raises UserError for other types and for values out of range.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or not minimum <= int(value) <= maximum:
        raise UserError(f"{name} is {value!r}: expected a whole number from {minimum} to {maximum}")
    return int(value)
