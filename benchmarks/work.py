"""Parts of a benchmark: cases, and sides that do the same work in their own settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.ceilings import Ceilings


@dataclass(frozen=True)
class Prepared:
    """A side that is ready to run.

    run     does the timed work of a case once; may do a part and return its fraction
    output  returns this side's result for the case's inputs, for comparison
    """

    run: Callable[[], float | None]
    output: Any


@dataclass(frozen=True)
class Side:
    """Ours, or a peer.

    settings  their names, each with its precision: of the weights, or of the products where those are coarser
    prepare   (case, setting, threads) -> Prepared; called in a process of this side's own, which makes the same weights
              and inputs from the same seeds
    within    what that process lives in, from its beginning to its end
    """

    settings: Mapping[str, str]
    prepare: Callable[[Any, str, int], Prepared]
    within: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Work:
    """One NAME of the bench.

    unit       of the figures: "tokens/s", or "seconds", which alone is better when it is smaller
    cases      what is done, by how a row calls it
    amount     units of one run of a case
    least      (case, precision, ceilings) -> the least seconds of a run on this machine
    ours       our side; `peers` by their names
    compare    (our output, another's) -> how far they are apart, as one number
    agreement  what that number is
    """

    unit: str
    cases: Mapping[str, Any]
    amount: Callable[[Any], float]
    least: Callable[[Any, str, Ceilings], float]
    ours: Side
    peers: Mapping[str, Side]
    compare: Callable[[Any, Any], float]
    agreement: str = "largest absolute difference"


def largest_difference(ours: Any, theirs: Any) -> float:
    """Of two arrays of one shape."""
    assert ours.shape == theirs.shape, f"{ours.shape} against {theirs.shape}"
    return float(abs(ours - theirs).max())


def three_digits(value: float | None) -> str:
    """A figure as it is shown: three digits, and all of a larger number; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
