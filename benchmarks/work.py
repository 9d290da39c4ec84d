"""Parts of a benchmark: cases, and sides that do the same work in their own settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
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
    error      (output of PyTorch in float32, another output) -> how far apart they are; None: nothing is compared
    error_is   what that number is
    bounds     largest errors of our settings, by precision, that count as the fastest; others are shown only
    """

    unit: str
    cases: Mapping[str, Any]
    amount: Callable[[Any], float]
    least: Callable[[Any, str, Ceilings], float]
    ours: Side
    peers: Mapping[str, Side]
    error: Callable[[Any, Any], float] | None = None
    error_is: str = "not compared"
    bounds: Mapping[str, float] = field(default_factory=dict)


RELATIVE = "root mean square of the difference from the output of PyTorch in float32, divided by its root mean square"


def relative_error(reference: Any, output: Any) -> float:
    """The norm of the difference of two arrays of one shape, divided by the norm of the first."""
    assert reference.shape == output.shape, f"{reference.shape} against {output.shape}"
    return float(((reference - output) ** 2).mean() ** 0.5 / ((reference**2).mean() ** 0.5 or 1.0))


def three_digits(value: float | None) -> str:
    """A figure as it is shown: three digits, and all of a larger number; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
