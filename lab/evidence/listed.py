"""The list of runs in `runs.toml`, checked and with a run for each seed."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from papers.recipes import ALL

LIST = Path(__file__).with_name("runs.toml")
NEEDED: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "claim": str,
    "shows": str,
    "train": str,
    "minutes": (int, float),
}
MORE: dict[str, type | tuple[type, ...]] = {
    "seeds": list,
    "device": str,
    "by": str,
    "planned": datetime,
    "gpu_minutes": (int, float),
}
TRAINERS = ("manyheads", "transformers")


@dataclass(frozen=True)
class Listed:
    """A run with one seed.

    name    of its directory and its record: its `entry`'s in the list, with the seed where that has several
    train   the words after `manyheads train`, or after the command of a paper; $DATA is the folder of all data sets
    after   the runs that it starts from, and those that they start from
    minutes about how long it takes: the budget, written down before the run
    device  "cuda": it needs a GPU
    by      library that trains it: one of TRAINERS, which take the same words
    planned when the run and its bar were written down, if that was kept
    gpu_minutes about how long it takes on a GPU, if that is known
    """

    name: str
    entry: str
    claim: str
    shows: str
    train: tuple[str, ...]
    minutes: float
    device: str
    after: tuple[Listed, ...] = ()
    by: str = "manyheads"
    planned: datetime | None = None
    gpu_minutes: float | None = None

    @property
    def program(self) -> tuple[str, ...]:
        """Return the words after `python -m` that precede the words in `train`."""
        if self.by == "transformers":
            return ("lab.evidence.peer",)
        return tuple(ALL[self.train[0]].program.removeprefix("python -m ").split())

    @property
    def settings(self) -> list[str]:
        """Return the settings that identify a run, with those of the runs that it starts from."""
        return [shlex.join(run.train) for run in (self, *self.after)]


def read_list(path: Path) -> tuple[dict[str, str], list[Listed]]:
    """The claims by their letter, and the runs in their order. Raises a ValueError that names the entry."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    claims: dict[str, str] = content.get("claims", {})
    listed: dict[str, Listed] = {}
    for entry in content.get("run", []):
        _check(path, entry, claims)
        seeds = entry.get("seeds", [1])
        for seed in seeds:
            name = f"{entry['name']}-{seed}" if "seeds" in entry else entry["name"]
            if name in listed:
                raise ValueError(f"{path}: {name} is listed twice")
            words = (*shlex.split(entry["train"]), f"training.seed={seed}")
            # a run that is started from precedes it, under the name used here: --init NAME, teacher=NAME
            before = [listed[last] for word in words if (last := word.rpartition("=")[2]) in listed]
            after = dict.fromkeys(run for one in before for run in (one, *one.after))
            listed[name] = Listed(
                name, entry["name"], entry["claim"], entry["shows"], words, entry["minutes"],
                entry.get("device", "cpu"), tuple(after), entry.get("by", "manyheads"),
                entry.get("planned"), entry.get("gpu_minutes"),
            )  # fmt: skip
    return claims, list(listed.values())


def _check(path: Path, entry: dict[str, Any], claims: dict[str, str]) -> None:
    place = f"{path}: run {entry.get('name', '?')!r}"
    for key, kind in NEEDED.items():
        if not isinstance(entry.get(key), kind):
            raise ValueError(f"{place}: {key} is {entry.get(key)!r}; needed are {', '.join(NEEDED)}")
    if unknown := sorted({*entry} - {*NEEDED, *MORE}):
        raise ValueError(f"{place}: unknown {', '.join(unknown)}; known are {', '.join((*NEEDED, *MORE))}")
    for key, kind in MORE.items():
        if key in entry and not isinstance(entry[key], kind):
            raise ValueError(f"{place}: {key} is {entry[key]!r}")
    if "planned" in entry and entry["planned"].tzinfo is None:
        raise ValueError(
            f"{place}: planned is {entry['planned']}: expected a time with its zone, such as ...T21:00:00Z"
        )
    if entry["claim"] not in claims:
        raise ValueError(f"{place}: no claim {entry['claim']!r}; there are {', '.join(claims)}")
    if entry.get("device", "cpu") not in ("cpu", "cuda"):
        raise ValueError(f"{place}: device is {entry['device']!r}: expected cpu or cuda")
    if entry.get("by", "manyheads") not in TRAINERS:
        raise ValueError(f"{place}: by is {entry['by']!r}: expected {' or '.join(TRAINERS)}")
    if not all(isinstance(seed, int) for seed in entry.get("seeds", [])):
        raise ValueError(f"{place}: seeds is {entry['seeds']!r}: expected numbers")
