"""A work measured, every side of a case in turn, several times over; and its rows: medians, spread, ratio and limit."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from benchmarks.ours import REFERENCE
from benchmarks.work import Work, three_digits
from benchmarks.workers import Failed, workers
from manyheads.core.config import PRECISIONS

if TYPE_CHECKING:
    from benchmarks.ceilings import Ceilings

REPEATS = 5
MINUTES = 3.0  # of a work, after which no further round begins once there are two


@dataclass(frozen=True)
class Measured:
    """A case of a work: by side and setting, the figures of its rounds and the output to compare."""

    name: str
    case: Any
    figures: Mapping[tuple[str, str], list[float]]
    outputs: Mapping[tuple[str, str], Any]
    reference: Any = None  # output of PyTorch in float32; None if nothing is compared


def measure(name: str, work: Work, peers: Mapping[str, Any], threads: int, repeats: int | None) -> list[Measured]:
    """Measure every case of a work, with all sides in turn.

    peers    other libraries that take part, by name
    repeats  rounds per case; default: five, or the number that fits into the time, at least two

    Raises RuntimeError if our own side fails. A library that fails is reported and left out.
    """
    measured = []
    with workers({"ours": work.ours, **peers}, threads) as sides:
        for case_name, case in work.cases.items():
            told = f"{name}, {case_name}" if case_name else name
            outputs: dict[tuple[str, str], Any] = {}
            reference = None
            if work.error is not None:
                _say(f"{told}: preparing the {REFERENCE}")
                with _left_out(told, "ours", REFERENCE):
                    reference = sides["ours"].prepare(case, REFERENCE)
                    sides["ours"].forget()
            for side in sides:
                for setting in (work.ours if side == "ours" else peers[side]).settings:
                    _say(f"{told}: preparing {side} {setting}")
                    with _left_out(told, side, setting):
                        outputs[side, setting] = sides[side].prepare(case, setting)
            figures: dict[tuple[str, str], list[float]] = defaultdict(list)
            until = time.monotonic() + 60 * MINUTES / len(work.cases)
            for round in range(repeats or REPEATS):
                if repeats is None and round >= 2 and time.monotonic() > until:
                    break
                for side, setting in [*outputs]:
                    output = outputs.pop((side, setting))
                    with _left_out(told, side, setting):
                        seconds = sides[side].seconds(setting)
                        outputs[side, setting] = output  # it is still there
                        figure = seconds if work.unit == "seconds" else work.amount(case) / seconds
                        figures[side, setting].append(figure)
                        _say(f"{told}, round {round + 1}: {side} {setting}: {three_digits(figure)} {work.unit}")
            for worker in sides.values():
                with suppress(Failed):  # of a process that has ended
                    worker.forget()
            measured.append(Measured(case_name, case, figures, outputs, reference))
    return measured


def rows(name: str, work: Work, measured: Sequence[Measured], ceilings: Ceilings) -> list[dict[str, Any]]:
    """A row for each case and precision of ours; its peers are those settings that are at least as precise as ours.

    After several precisions, a further row has the fastest of ours and of each peer whose errors are within the bounds.
    """
    table_rows = []
    for taken in measured:
        errors = {side: _error(work, taken.reference, output) for side, output in taken.outputs.items()}
        of_case = []
        for setting, precision in work.ours.settings.items():
            others = {
                f"{side} {other}".strip(): (statistics.median(taken.figures[side, other]), errors[side, other])
                for side, other in taken.outputs
                if side != "ours"
                and PRECISIONS.index(work.peers[side].settings[other]) <= PRECISIONS.index(precision)
            }  # fmt: skip
            row_case = ", ".join(part for part in (taken.name, setting) if part)
            limit = _limit(work, taken.case, precision, ceilings)
            ours = taken.figures["ours", setting], errors["ours", setting]
            of_case.append(row(name, row_case, work, ours, others, limit))
        table_rows += of_case
        if len(of_case) > 1:
            table_rows.append(fastest(taken.name, work, dict(zip(work.ours.settings, of_case, strict=True))))
    return table_rows


def fastest(case: str, work: Work, by_setting: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the row of our fastest setting, next to the peers' settings of any precision.

    Ours are the settings within the bound of their precision. A peer's setting counts within the largest bound.
    """

    def within(error: float | None, bound: float | None) -> bool:
        return bound is None or error is None or error <= bound

    ours = {setting: of_setting for setting, of_setting in by_setting.items()
            if within(of_setting["errors"].get("ours"), work.bounds.get(setting))}  # fmt: skip
    setting = max(ours, key=lambda name: ours[name]["ours"])
    loosest = max(work.bounds.values(), default=None)
    peers, errors = {}, {"ours": ours[setting]["errors"].get("ours")}
    for of_setting in by_setting.values():
        for peer, figure in of_setting["peers"].items():
            if within(of_setting["errors"].get(peer), loosest):
                peers[peer], errors[peer] = figure, of_setting["errors"].get(peer)
    best = max(peers.values(), default=None)
    described = ", ".join(part for part in (case, f"fastest: {setting}") if part)
    return ours[setting] | {"case": described, "peers": peers, "errors": errors,
                            "ratio": None if best is None else ours[setting]["ours"] / best}  # fmt: skip


@contextmanager
def _left_out(told: str, side: str, setting: str) -> Iterator[None]:
    """Report a failure of another library. A failure of this package ends the benchmark."""
    try:
        yield
    except Failed as error:
        if side == "ours":
            raise RuntimeError(f"{told}, {setting}: {error}") from None
        _say(f"{told}: {side} {setting} is left out: {error}")


def row(
    name: str, case: str, work: Work, ours: tuple[Sequence[float], float | None],
    others: Mapping[str, tuple[float, float | None]], limit: float | None,
) -> dict[str, Any]:  # fmt: skip
    """ours: a figure a round, and the error; others: the median of each peer's setting, and its error."""
    figures, error = ours
    figure, limit = _round(statistics.median(figures)), None if limit is None else _round(limit)
    peers = {peer: _round(other) for peer, (other, _) in others.items()}
    errors = {"ours": error, **{peer: other for peer, (_, other) in others.items()}}
    best = (min if work.unit == "seconds" else max)(peers.values(), default=None)
    return {
        "work": name, "case": case, "unit": work.unit, "ours": figure, "peers": peers,
        "ratio": None if best is None else figure / best,
        "limit": limit, "share_of_limit": None if limit is None else figure / limit,
        "spread": [_round(min(figures)), _round(max(figures))], "repeats": len(figures),
        "errors": errors, "errors_are": work.error_is,
    }  # fmt: skip


def _error(work: Work, reference: Any, output: Any) -> float | None:
    if work.error is None:
        return None
    error = work.error(reference, output)
    return _round(error) if isfinite(error) else None


def _limit(work: Work, case: Any, precision: str, ceilings: Ceilings) -> float | None:
    if precision not in ceilings.products:
        return None
    seconds = work.least(case, precision, ceilings)
    return seconds if work.unit == "seconds" else work.amount(case) / seconds


def _round(value: float) -> float:
    """To four digits: more are noise."""
    return float(f"{value:.4g}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
