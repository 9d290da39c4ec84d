"""Configurations of models: what is no size, rate or choice is refused in words."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from manyheads.core.config import Config, from_preset


@dataclass(frozen=True)
class Sizes(Config):
    width: int = 8
    layers: int = 0
    pad: int = 0
    hidden: int | None = None
    dropout: float = 0.1
    norm_eps: float = 1e-5
    bias: bool = True
    norm: Literal["pre", "post"] = "pre"
    halting_bias: float = 1.0
    labels: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("width", 0, "an integer from 1"),
        ("width", -2, "an integer from 1"),
        ("width", 10**25, "to 2147483647"),
        ("width", "abc", "an integer"),
        ("width", True, "an integer"),
        ("width", 8.0, "an integer"),
        ("layers", -1, "an integer from 0"),
        ("pad", -1, "an integer from 0"),
        ("hidden", 0, "an integer from 1 to 2147483647 or none"),
        ("dropout", 2, "a number from 0 to 1"),
        ("dropout", "abc", "a number"),
        ("dropout", float("nan"), "a number"),
        ("norm_eps", float("inf"), "a number"),
        ("norm_eps", -1e-5, "a number from 0"),
        ("halting_bias", float("-inf"), "a number"),
        ("bias", 1, "true or false"),
        ("norm", "middle", "one of pre, post"),
        ("norm", None, "one of pre, post"),
        ("labels", "ab", "a list"),
        ("labels", (1, 2), "a list"),
    ],
)
def test_what_is_no_value_of_its_field_is_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is .*expected .*{expected}"):
        Sizes(**{name: value})


def test_what_is_a_value_is_taken() -> None:
    labels: Any = ["a", "b"]  # as JSON gives it
    sizes = Sizes(width=1, hidden=None, dropout=1, norm_eps=0.0, halting_bias=-2.5, labels=labels)
    assert sizes.labels == ("a", "b")


def test_presets_are_found_by_name_and_changed() -> None:
    presets = {"small": {"width": 4}}
    assert from_preset(Sizes, presets, "small", {"layers": 3}) == Sizes(width=4, layers=3)
    with pytest.raises(ValueError, match="unknown preset 'big': valid are small"):
        from_preset(Sizes, presets, "big", {})
    with pytest.raises(ValueError, match="unknown settings depth: valid are bias, dropout"):
        from_preset(Sizes, presets, "small", {"depth": 3})
