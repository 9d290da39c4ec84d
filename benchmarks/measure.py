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
            measured.append(Measured(case_name, case, figures, outputs))
    return measured


def rows(name: str, work: Work, measured: Sequence[Measured], ceilings: Ceilings) -> list[dict[str, Any]]:
    """A row for each case and precision of ours; its peers are those settings that are at least as precise as ours."""
    table_rows = []
    for taken in measured:
        for setting, precision in work.ours.settings.items():
            others = {
                f"{side} {other}".strip(): (
                    statistics.median(taken.figures[side, other]), work.compare(taken.outputs["ours", setting], output)
                )
                for (side, other), output in taken.outputs.items()
                if side != "ours"
                and PRECISIONS.index(work.peers[side].settings[other]) <= PRECISIONS.index(precision)
            }  # fmt: skip
            row_case = ", ".join(part for part in (taken.name, setting) if part)
            limit = _limit(work, taken.case, precision, ceilings)
            table_rows.append(row(name, row_case, work, taken.figures["ours", setting], others, limit))
    return table_rows


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
    name: str, case: str, work: Work, ours: Sequence[float], others: Mapping[str, tuple[float, float]],
    limit: float | None,
) -> dict[str, Any]:  # fmt: skip
    """ours: a figure a round; others: the median of each peer's setting, and how far its output is from ours."""
    figure, limit = _round(statistics.median(ours)), None if limit is None else _round(limit)
    peers = {peer: _round(other) for peer, (other, _) in others.items()}
    agreement = {peer: _round(apart) if isfinite(apart) else None for peer, (_, apart) in others.items()}
    best = (min if work.unit == "seconds" else max)(peers.values(), default=None)
    return {
        "work": name, "case": case, "unit": work.unit, "ours": figure, "peers": peers,
        "ratio": None if best is None else figure / best,
        "limit": limit, "share_of_limit": None if limit is None else figure / limit,
        "spread": [_round(min(ours)), _round(max(ours))], "repeats": len(ours),
        "agreement": {"is": work.agreement, **agreement},
    }  # fmt: skip


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
