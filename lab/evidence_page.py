"""The tables of docs/measured/evidence.md: the claims of the sources, with the verdict that the records support."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from lab import results_keep
from lab.evidence.listed import LIST, Listed, read_list
from lab.records import run_of

# 97.5% of Student's t lie below, by how many seeds there are
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
Scores = dict[int, float]  # of each seed


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Requirement of a claim for its runs.

    of      an entry of the list: its records are NAME, or NAME-SEED
    than    another entry, or peers/NAME: then the difference of both counts, seed by seed
    metric  name of the metric
    least   minimum of the mean; most: its maximum. A difference must also be above zero with 95% confidence
    errors  alternative: not worse than the other's mean by more than this number of its standard errors
    """

    claim: str
    of: str
    metric: str
    than: str | None = None
    least: float | None = None
    most: float | None = None
    errors: float | None = None

    def __post_init__(self) -> None:
        goals = [self.least, self.most, self.errors]
        if sum(goal is not None for goal in goals) != 1 or (self.errors is not None and self.than is None):
            raise ValueError(f"bar of {self.of}: expected least, most, or errors and than")

    @property
    def words(self) -> str:
        if self.errors is not None:
            return f"`{self.of}` no worse than `{self.than}` by more than {self.errors:g} standard error"
        if self.than is not None:
            return f"`{self.of}` better than `{self.than}`" + (f" by {self.least:g}" if self.least else "")
        return f"`{self.of}` " + (f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}")

    def judged(self, records: Mapping[str, Any], seeds: int) -> tuple[str, bool | None]:
        """Return the result, and whether the requirement is met; None if records of some seeds are missing."""
        by_seed = scores(records, self.of, self.metric)
        if self.than is None:
            if len(by_seed) < seeds:
                return _waiting(by_seed, seeds), None
            value = mean(by_seed.values())
            met = value >= self.least if self.least is not None else value <= (self.most or 0.0)
            return _spread(by_seed), met
        others = scores(records, self.than, self.metric)
        both = sorted({*by_seed} & {*others})
        if self.errors is not None:
            if min(len(by_seed), len(others)) < max(seeds, 2):
                return _waiting(by_seed, seeds, others), None
            error = stdev(others.values()) / len(others) ** 0.5
            met = mean(by_seed.values()) >= mean(others.values()) - self.errors * error
            told = f"{_spread(by_seed)} against {_spread(others)}"
            return f"{told}: {_difference(by_seed, others, both)[0]}" if len(both) > 1 else told, met
        if len(both) < max(seeds, 2):
            return _waiting(by_seed, seeds, others), None
        told, difference, low = _difference(by_seed, others, both)
        return told, difference >= (self.least or 0.0) and low > 0


def _difference(by_seed: Scores, others: Scores, seeds: Sequence[int]) -> tuple[str, float, float]:
    """In words; the mean over these seeds, which both have; the lower end of its interval."""
    difference, half = paired([by_seed[seed] for seed in seeds], [others[seed] for seed in seeds])
    low, high = difference - half, difference + half
    return f"{difference:+.3f} ({low:+.3f} to {high:+.3f}, paired, 95%, {len(seeds)} seeds)", difference, low


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The mean of the differences of pairs, and half of its 95% interval (Student's t)."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    return mean(differences), STUDENT[len(differences)] * stdev(differences) / len(differences) ** 0.5


def scores(records: Mapping[str, Any], name: str, metric: str) -> Scores:
    """By seed, of the records NAME and NAME-SEED."""
    pattern = re.compile(rf"{re.escape(name)}(-\d+)?")
    return {r["seed"]: r["metrics"][metric]["value"] for key, r in records.items() if pattern.fullmatch(key)}


def kept(listed: Sequence[Listed]) -> dict[str, Any]:
    """The records of runs by their names, and those of peers as peers/NAME; without those of a listed run that was made
    with other settings than the list has now."""
    settings = {run.name: run.settings for run in listed}

    def current(about: dict[str, Any]) -> bool:
        return settings.get(about["run"], about["settings"]) == about["settings"]

    return {
        name: record
        for name, record in results_keep.kept().items()
        if "evidence" not in record or current(record["evidence"])
    }


def read_bars(path: Path = LIST) -> list[Bar]:
    """The bars in their order. Raises a ValueError that names the faulty one."""
    try:
        return [Bar(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("bar", [])]
    except TypeError as error:
        raise ValueError(f"{path}: bar: {error}") from None


def states(path: Path = LIST) -> str:
    """A row for each claim."""
    claims, listed = read_list(path)
    records, bars = kept(listed), read_bars(path)
    rows = ["| | claim | state | runs kept | minutes left, one core | a GPU |", "| --- | --- | --- | --: | --: | --: |"]
    for letter, claim in claims.items():
        runs = [run for run in listed if run.claim == letter]
        left = [run for run in runs if not _is_kept(run, records)]
        minutes = {kind: sum(run.minutes for run in left if run.device == kind) for kind in ("cpu", "cuda")}
        state = _state([_judged(bar, listed, records)[1] for bar in bars if bar.claim == letter], bool(left))
        rows.append(
            f"| ({letter}) | {claim} | **{state}** | {len(runs) - len(left)} of {len(runs)} | "
            f"{minutes['cpu']:,g} | {minutes['cuda']:,g} |"
        )
    return "\n".join(rows)


def bars_table(path: Path = LIST) -> str:
    """Return the requirement and the result of each claim."""
    _, listed = read_list(path)
    records = kept(listed)
    rows = ["| | demanded | metric | found | |", "| --- | --- | --- | --- | --- |"]
    for bar in read_bars(path):
        figures, met = _judged(bar, listed, records)
        verdict = {True: "met", False: "**not met**", None: "waits"}[met]
        rows.append(f"| ({bar.claim}) | {bar.words} | {bar.metric} | {figures} | {verdict} |")
    return "\n".join(rows)


def left_table(path: Path = LIST) -> str:
    """The runs that are left, an entry a row."""
    _, listed = read_list(path)
    records = kept(listed)
    rows = ["| | run | it shows | left | minutes each | |", "| --- | --- | --- | --: | --: | --- |"]
    for name in dict.fromkeys(run.entry for run in listed):
        runs = [run for run in listed if run.entry == name]
        left, one = sum(not _is_kept(run, records) for run in runs), runs[0]
        if left:
            device = "GPU" if one.device == "cuda" else "core"
            rows.append(
                f"| ({one.claim}) | `{name}` | {one.shows} | {left} of {len(runs)} | {one.minutes:g} | {device} |"
            )
    return "\n".join(rows)


def _judged(bar: Bar, listed: list[Listed], records: Mapping[str, Any]) -> tuple[str, bool | None]:
    # the first seed of some is kept from before the list
    wanted = len([run for run in listed if run.entry == bar.of])
    wanted += bar.of in records and bar.of not in {run.name for run in listed}
    return bar.judged(records, max(wanted, 1))


def _is_kept(run: Listed, records: Mapping[str, Any]) -> bool:
    return any(run_of(record) == run.name for record in records.values())


def _state(met: list[bool | None], left: bool) -> str:
    """Of a claim: what its bars say once they are all known; without bars, whether its curve is whole."""
    if not met:
        return "waits" if left else "measured"
    if None in met:
        return "waits"
    return "shown" if all(met) else "refuted"


def _spread(by_seed: Scores) -> str:
    values = list(by_seed.values())
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f} ({len(values)} seeds)" if len(values) > 1 else "")


def _waiting(by_seed: Scores, seeds: int, others: Scores | None = None) -> str:
    told = f"{len(by_seed)} of {seeds}"
    return told if others is None else f"{told}, of the other {len(others)}"


PARTS = (states, bars_table, left_table)
