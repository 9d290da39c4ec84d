"""The tables of docs/measured/evidence.md: the claims of the sources, with the verdict that the records support."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from lab import capacity_page, results_keep, rivals_page
from lab.evidence.listed import LIST, Listed, read_list
from lab.records import half_width, run_of

Scores = dict[int, float]  # score by seed
DEVICES = {"cpu": "one core", "cuda": "a GPU"}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Requirement of a claim for its runs.

    of      an entry of the list: its records are NAME, or NAME-SEED. NAME-*-ROW is a row of an entry with several
    than    another entry, or peers/NAME: then the difference of both counts, seed by seed
    metric  name of the metric
    least   minimum of the mean; most: its maximum. A difference must also be above zero with 95% confidence
    errors  alternative: not worse than the other's mean by more than this number of its standard errors
    margin  alternative: with 95% confidence not worse than the other by more than this
    lower   True: smaller values are better, as of a loss. A difference is then the other's value minus its own
    untested  why the runs could not have shown the effect; then they decide nothing
    """

    claim: str
    of: str
    metric: str
    than: str | None = None
    least: float | None = None
    most: float | None = None
    errors: float | None = None
    margin: float | None = None
    lower: bool = False
    untested: str | None = None

    def __post_init__(self) -> None:
        goals = [self.least, self.most, self.errors, self.margin]
        if sum(goal is not None for goal in goals) != 1 or (self.than is None and goals[2:] != [None, None]):
            raise ValueError(f"bar of {self.of}: expected least, most, or than with errors or margin")
        if self.lower and (self.than is None or self.least is None):
            raise ValueError(f"bar of {self.of}: lower needs than and least")

    @property
    def entries(self) -> set[str]:
        """Names of the listed entries whose records are compared."""
        return {name.removeprefix("peers/").partition("-*")[0] for name in filter(None, (self.of, self.than))}

    def has_records(self, records: Mapping[str, Any]) -> bool:
        """Return whether each side has a record. Those made before the list existed do not name their run."""
        return all(scores(records, name, self.metric) for name in filter(None, (self.of, self.than)))

    @property
    def words(self) -> str:
        if self.errors is not None:
            return f"`{self.of}` no worse than `{self.than}` by more than {self.errors:g} standard error"
        if self.margin is not None:
            return f"`{self.of}` worse than `{self.than}` by at most {self.margin:g}"
        if self.than is not None:
            return f"`{self.of}` better than `{self.than}`" + (f" by {self.least:g}" if self.least else "")
        return f"`{self.of}` " + (f"at least {self.least:g}" if self.least is not None else f"at most {self.most:g}")

    def judged(self, records: Mapping[str, Any], seeds: int) -> tuple[str, str]:
        """Return the result and the verdict.

        The verdict is "met", "not met", "refuted" (the 95% interval excludes the required difference), "not tested",
        or "waits" if records of some seeds are missing.
        """
        by_seed = scores(records, self.of, self.metric)
        if self.than is None:
            if len(by_seed) < seeds:
                return _waiting(by_seed, seeds), "waits"
            value = mean(by_seed.values())
            met = value >= self.least if self.least is not None else value <= (self.most or 0.0)
            return _spread(by_seed), "met" if met else "not met"
        others = scores(records, self.than, self.metric)
        both = sorted({*by_seed} & {*others})
        if min(len(by_seed), len(others)) < max(seeds, 2) or (self.errors is None and len(both) < max(seeds, 2)):
            return _waiting(by_seed, seeds, others), "waits"
        if len(both) < 2:
            return f"{_spread(by_seed)} against {_spread(others)}", self._verdict(by_seed, others, None)
        pair = [by_seed[seed] for seed in both], [others[seed] for seed in both]
        difference, half = paired(*(pair[::-1] if self.lower else pair))
        interval = difference - half, difference + half
        found = f"{difference:+.3f} ({interval[0]:+.3f} to {interval[1]:+.3f}, paired, 95%, {len(both)} seeds)"
        if self.errors is not None:
            found = f"{_spread(by_seed)} against {_spread(others)}: {found}"
        return found, self._verdict(by_seed, others, (difference, *interval))

    def _verdict(self, by_seed: Scores, others: Scores, found: tuple[float, float, float] | None) -> str:
        """Return the verdict on a difference `found`: its mean, and the ends of its interval."""
        if self.untested is not None:
            return "not tested"
        least = -self.margin if self.margin is not None else self.least or 0.0
        if self.margin is not None:
            if found is not None and found[1] >= least:
                return "met"
        elif self.errors is not None:
            error = stdev(others.values()) / len(others) ** 0.5
            if mean(by_seed.values()) >= mean(others.values()) - self.errors * error:
                return "met"
            least = 0.0
        elif found is not None and found[0] >= least and found[1] > 0:
            return "met"
        return "refuted" if found is not None and found[2] < least else "not met"


@dataclass(frozen=True, kw_only=True)
class Lead:
    """Requirement that the Transformer leads a rival of docs/papers/rivals.md, at equal FLOPs, by `rivals_page.CLAIM`.

    rival   name of a row of the recipe `translation/rivals`
    target  one of `rivals_page.COMPARISONS`, such as "fr"
    """

    claim: str
    rival: str
    target: str
    metric = rivals_page.METRIC

    @property
    def entries(self) -> set[str]:
        """Names of the listed entries whose records are compared."""
        return {f"rivals-{self.target}-{row}" for row in ("transformer", self.rival)}

    def has_records(self, records: Mapping[str, Any]) -> bool:
        """Return whether both models were compared."""
        return self.rival in rivals_page.differences(self.target)

    @property
    def words(self) -> str:
        names = f"`rivals-{self.target}-transformer` better than `rivals-{self.target}-{self.rival}`"
        return f"{names} by {rivals_page.CLAIM:g}"

    def judged(self) -> tuple[str, str]:
        """Return the result and the verdict: "met", "refuted" or "not met"."""
        low, high = rivals_page.interval(self.rival, self.target)
        verdict = {"shown": "met", "not decided": "not met"}.get(
            found := rivals_page.verdict(self.rival, self.target), found
        )
        return f"{(low + high) / 2:+.1f} ({low:+.1f} to {high:+.1f}, sentences and seeds, 95%)", verdict


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Requirement of docs/papers/capacity.md: the loss of the Transformer falls faster with its size than a rival's.

    of     entry of the list with the runs
    rival  an architecture of `papers.capacity`
    """

    claim: str
    of: str
    rival: str
    metric = "loss"

    @property
    def entries(self) -> set[str]:
        """Names of the listed entries whose records are compared."""
        return {self.of}

    def has_records(self, records: Mapping[str, Any]) -> bool:
        """Return whether a seed has the slopes of both models."""
        return bool(self.values)

    @property
    def words(self) -> str:
        return f"`{self.of}`: slope over the parameters more negative for the Transformer than for {self.rival}"

    @property
    def values(self) -> list[float]:
        """Differences of the slopes, seed by seed."""
        return capacity_page.differences(entry=self.of).get(self.rival, [])

    def judged(self) -> tuple[str, str]:
        """Return the result and the verdict: "met", "refuted" or "not met"."""
        found = capacity_page.judgment(self.values)
        low, high = capacity_page.interval(self.values) or (mean(self.values),) * 2
        text = f"{mean(self.values):+.3f} ({low:+.3f} to {high:+.3f}, paired, 95%, {len(self.values)} seeds)"
        return text, {"shown": "met", "not decided": "not met"}.get(found, found)


Requirement = Bar | Lead | Slope
KINDS = {"bar": Bar, "lead": Lead, "slope": Slope}  # by the name of its entries in the list


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the paired differences, and half the width of its 95% interval."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    return mean(differences), half_width(differences)


def scores(records: Mapping[str, Any], name: str, metric: str) -> Scores:
    """Return the scores of the records NAME and NAME-SEED, or of NAME-SEED-ROW for the name NAME-*-ROW, by seed."""
    pattern = re.compile(re.escape(name).replace(r"\*", r"\d+") + r"(-\d+)?")
    return {r["seed"]: r["metrics"][metric]["value"] for key, r in records.items() if pattern.fullmatch(key)}


def kept(listed: Sequence[Listed]) -> dict[str, Any]:
    """Return the records of runs by name, and records of other libraries as peers/NAME.

    Records of a listed run with other settings than in the list are left out.
    """
    settings = {run.name: run.settings for run in listed}

    def current(about: dict[str, Any]) -> bool:
        return settings.get(about["run"], about["settings"]) == about["settings"]

    return {
        name: record
        for name, record in results_keep.kept().items()
        if "evidence" not in record or current(record["evidence"])
    }


def read_bars(path: Path = LIST) -> list[Requirement]:
    """Return the bars in the order of the list, then the leads and the slopes.

    Raises ValueError with the name of an invalid one.
    """
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    found: list[Requirement] = []
    for name, kind in KINDS.items():
        try:
            found += [kind(**entry) for entry in content.get(name, [])]
        except TypeError as error:
            raise ValueError(f"{path}: {name}: {error}") from None
    return found


def source_claims(path: Path = LIST) -> str:
    """Return the claims of the sources, each with its verdict."""
    return f"## Claims of the sources\n\n{_states(path, others=False)}"


def other_claims(path: Path = LIST) -> str:
    """Return the claims of further papers and about our own recipes, each with its verdict."""
    return f"## Other claims\n\n{_states(path, others=True)}"


def _states(path: Path, others: bool) -> str:
    claims, listed = read_list(path)
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    limits: dict[str, str] = content.get("limits", {})
    records, bars = kept(listed), read_bars(path)
    rows = ["| | claim | verdict | what the test cannot show |", "| --- | --- | --- | --- |"]
    for letter, claim in claims.items():
        if (letter in content.get("others", [])) == others:
            runs = [run for run in listed if run.claim == letter]
            left = any(not _is_kept(run, records) for run in runs if run.device == "cpu")
            state = _state([_judged(bar, listed, records)[1] for bar in bars if bar.claim == letter], left)
            rows.append(f"| ({letter}) | {claim} | **{state}** | {limits.get(letter, '')} |")
    return "\n".join(rows)


def bars_table(path: Path = LIST) -> str:
    """Return the requirement and the result of each claim."""
    _, listed = read_list(path)
    records = kept(listed)
    rows = ["| | required | metric | result | |", "| --- | --- | --- | --- | --- |"]
    for bar in read_bars(path):
        figures, verdict = _judged(bar, listed, records)
        shown = verdict if verdict in ("met", "waits") else f"**{verdict}**"
        shown += f": {bar.untested}" if isinstance(bar, Bar) and bar.untested and verdict == "not tested" else ""
        rows.append(f"| ({bar.claim}) | {bar.words} | {bar.metric} | {figures} | {shown} |")
    return "## Requirements\n\n" + "\n".join(rows)


def _judged(bar: Requirement, listed: list[Listed], records: Mapping[str, Any]) -> tuple[str, str]:
    runs = [run for run in listed if run.entry in bar.entries]
    if runs and not bar.has_records(records):
        return _cost(runs, records), "not tested"
    if isinstance(bar, Lead):
        return bar.judged()
    if isinstance(bar, Slope):
        found = len(bar.values)
        return bar.judged() if found == len(runs) else (f"{found} of {len(runs)}", "waits")
    # The first seed of some entries was recorded before the list existed.
    wanted = len([run for run in listed if run.entry == bar.of.partition("-*")[0]])
    wanted += bar.of in records and bar.of not in {run.name for run in listed}
    return bar.judged(records, max(wanted, 1))


def _cost(runs: Sequence[Listed], records: Mapping[str, Any]) -> str:
    """Return what the runs would cost, with those that they start from."""
    needed = dict.fromkeys(each for run in runs for each in (*run.after, run) if not _is_kept(each, records))
    minutes = {device: sum(run.minutes for run in needed if run.device == device) for device in ("cpu", "cuda")}
    parts = [f"{minutes[device]:g} minutes of {name}" for device, name in DEVICES.items() if minutes[device]]
    return f"needs {' and '.join(parts)}"


def _is_kept(run: Listed, records: Mapping[str, Any]) -> bool:
    return any(run_of(record) == run.name for record in records.values())


def _state(verdicts: list[str], left: bool) -> str:
    """Return the state of a claim from the verdicts on its requirements.

    A claim without requirements is a curve or a table. It is measured when all its runs on a CPU are recorded.
    """
    if not verdicts:
        return "waits" if left else "measured"
    tested = [verdict for verdict in verdicts if verdict != "not tested"]
    if "waits" in verdicts:
        return "waits"
    if not tested:
        return "not tested"
    state = "shown" if set(tested) == {"met"} else "refuted" if "refuted" in tested else "not decided"
    return state if len(tested) == len(verdicts) else f"{state}, in part not tested"


def _spread(by_seed: Scores) -> str:
    values = list(by_seed.values())
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f} ({len(values)} seeds)" if len(values) > 1 else "")


def _waiting(by_seed: Scores, seeds: int, others: Scores | None = None) -> str:
    found = f"{len(by_seed)} of {seeds}"
    return found if others is None else f"{found}, of the other {len(others)}"


PARTS = (source_claims, other_claims, bars_table)
