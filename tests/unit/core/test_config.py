"""Configurations: invalid sizes, rates and choices raise clear errors before any allocation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from manyheads.core.config import (
    Below,
    Config,
    Epsilon,
    Heads,
    Layers,
    Range,
    Rate,
    Size,
    TokenId,
    Vocabulary,
    check_fields,
)


@dataclass(frozen=True)
class Sizes(Config):
    vocab: Vocabulary = 10
    width: Size = 8
    heads: Heads = 2
    layers: Layers = 1
    pad: TokenId = 0
    end: TokenId | None = None
    first: Annotated[int, Range(0, 10), Below("width")] = 0
    hidden: Size | None = None
    dropout: Rate = 0.1
    momentum: Annotated[float, Range(0, 1, above=True, below=True)] = 0.5
    betas: tuple[Rate, Rate] = (0.0, 0.0)
    norm_eps: Epsilon = 1e-5
    bias: bool = True
    norm: Literal["pre", "post"] = "pre"
    halting_bias: float = 1.0
    labels: tuple[str, ...] = ()
    file: Path | None = None
    model: dict[str, Any] = field(default_factory=dict)
    anything: Any = None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("width", 0, "an integer from 1 to 1048576"),
        ("width", -2, "an integer from 1"),
        ("width", 10**9, "an integer from 1 to 1048576"),
        ("width", 10**400, "an integer from 1 to 1048576"),
        ("width", "abc", "an integer"),
        ("width", True, "an integer"),
        ("width", 8.0, "an integer"),
        ("layers", 0, "an integer from 1 to 1000"),
        ("layers", 1_000_000, "an integer from 1 to 1000"),
        ("heads", 3, r"an integer that divides width \(8\)"),
        ("pad", -1, r"an integer from 0 to below vocab \(10\)"),
        ("pad", 10, r"an integer from 0 to below vocab \(10\)"),
        ("end", 10, r"an integer from 0 to below vocab \(10\) or none"),
        ("first", 9, r"an integer from 0 to below width \(8\)"),
        ("first", 11, "an integer from 0 to 10"),
        ("hidden", 0, "an integer from 1 to 1048576 or none"),
        ("dropout", 2, "a number from 0 to 1"),
        ("dropout", "abc", "a number"),
        ("dropout", float("nan"), "a number"),
        ("momentum", 0.0, "a number above 0 and below 1"),
        ("momentum", 1, "a number above 0 and below 1"),
        ("betas", (0.1,), "a list of 2"),
        ("betas", (0.1, 3), "a list with each item a number from 0 to 1, but item 2 is 3$"),
        ("norm_eps", float("inf"), "a number"),
        ("norm_eps", -1e-5, "a number from 0"),
        ("halting_bias", float("-inf"), "a number"),
        ("bias", 1, "true or false"),
        ("norm", "middle", "one of pre, post"),
        ("norm", None, "one of pre, post"),
        ("labels", "ab", "a list"),
        ("labels", (1, 2), "a list with each item a name"),
        ("file", 3, "a path or none"),
        ("model", [3], "a mapping"),
    ],
)
def test_invalid_field_values_are_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is .*expected {expected}") as caught:
        Sizes(**{name: value})
    assert len(str(caught.value)) < 200


def test_valid_values_are_accepted() -> None:
    labels: Any = ["a", "b"]  # as JSON gives it
    sizes = Sizes(width=1, heads=1, hidden=None, dropout=1, norm_eps=0.0, halting_bias=-2.5, labels=labels, end=9)
    assert sizes.labels == ("a", "b")
    assert Sizes(file=Path("a"), anything=[1]).anything == [1]


def test_plain_dataclasses_are_validated_on_demand() -> None:
    @dataclass
    class Plain:
        width: Size
        inner: Sizes

    check_fields(Plain(3, Sizes()))
    for bad, expected in ((Plain(0, Sizes()), "width is 0"), (Plain(3, None), "inner is None: expected a Sizes")):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=expected):
            check_fields(bad)


def test_true_is_not_the_choice_1() -> None:
    @dataclass(frozen=True)
    class Chosen(Config):
        rank: Literal[1, 3] = 1

    with pytest.raises(ValueError, match="rank is True: expected one of 1, 3"):
        Chosen(True)  # type: ignore[arg-type]
