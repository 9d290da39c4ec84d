"""Choice of the fastest way to run a stack of blocks on this machine, by measurement.

Each way is called a route:

    plain     PyTorch's modules
    onednn    matrix products of oneDNN, for whole sequences (`onednn.py`)
    kernels   fused kernels of this package (`kernels/`)

One block of the stack is timed for each kind of work: whole sequences, and the next positions of sequences whose keys
and values are cached. The times are stored with the compiled kernels. The environment variable MANYHEADS_ROUTE selects
a route without measurement.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from manyheads.core.block import Block, Stack
from manyheads.core.layers import FeedForward
from manyheads.core.runtime import processor
from manyheads.errors import UserError
from manyheads.files import WriteError, write_json

logger = logging.getLogger(__name__)

Route = Literal["plain", "onednn", "kernels"]
ROUTES: tuple[Route, ...] = get_args(Route)
WORKS = ("sequences", "steps")
LEAD = 0.95  # Another route is only used if it takes at most this fraction of the time of the kernels.


@dataclass(frozen=True)
class Routes:
    """Measured seconds of one block by route.

    sequences  times for whole sequences
    steps      times for steps with cached keys and values; empty if the model has no such steps
    """

    sequences: Mapping[Route, float]
    steps: Mapping[Route, float]

    def best(self) -> tuple[Route, Route]:
        """Return the fastest routes for whole sequences and for cached steps."""
        return _fastest(self.sequences), _fastest(self.steps)

    def merge(self, other: Routes) -> Routes:
        """Return the shorter of both times of each route."""
        pairs = ((self.sequences, other.sequences), (self.steps, other.steps))
        return Routes(*({route: min(one[route], two.get(route, one[route])) for route in one} for one, two in pairs))

    def used(self) -> set[Route]:
        """Return the best route of each kind of work that occurs."""
        return {_fastest(seconds) for seconds in (self.sequences, self.steps) if seconds}

    @property
    def lead(self) -> float:
        """Return the time of the kernels divided by the time of oneDNN for whole sequences; infinity if unmeasured."""
        return self.sequences.get("kernels", math.inf) / self.sequences.get("onednn", 1.0)


def forced() -> Routes | None:
    """Return the route that MANYHEADS_ROUTE selects, or None."""
    route = os.environ.get("MANYHEADS_ROUTE")
    if not route:
        return None
    for known in ROUTES:
        if route == known:
            step: Route = "kernels" if known == "onednn" else known
            return Routes({known: 1.0}, {step: 1.0})
    raise UserError(f"MANYHEADS_ROUTE is {route!r}: expected {', '.join(ROUTES)}, or no value for the fastest")


def _fastest(seconds: Mapping[Route, float]) -> Route:
    if not seconds:
        return "kernels"
    best = min(seconds, key=seconds.__getitem__)
    slower = "kernels" in seconds and seconds[best] > LEAD * seconds["kernels"]
    return "kernels" if slower else best


def key(stack: Stack, precision: str, threads: int, *, steps: bool) -> str:
    """Return the name under which the times of a stack are stored. It contains everything on which they depend."""
    block = stack.blocks[0]
    assert isinstance(block, Block)
    assert isinstance(block.feed_forward, FeedForward)
    own, hidden = block.attention, block.feed_forward.expand.out_features
    sizes = f"{own.query.in_features} wide, {own.heads} heads of {own.head_width}, {hidden} hidden"
    work = f"{'pre' if block.norm_first else 'post'}-norm{', cross' if block.cross else ''}{', steps' if steps else ''}"
    machine = f"{processor()}, torch {torch.__version__}, {threads} threads"
    return f"{precision}, {sizes}, {work}; {machine}"


def stored(file: Path, name: str) -> tuple[Routes, int] | None:
    """Return the stored times, and the number of processes that must repeat the measurement.

    Returns None if the file does not contain the times, or is damaged.
    """
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))[name]
        works = ({route: float(entry[work][route]) for route in ROUTES if route in entry[work]} for work in WORKS)
        return Routes(*works), int(entry["missing"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def store(file: Path, name: str, routes: Routes, missing: int) -> None:
    """Add the times of a stack to the file of measured times.

    If two processes write at the same time, one result may be lost; it is measured again later.

    missing  number of processes that must repeat the measurement
    """
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        entries = {}
    entries = entries if isinstance(entries, dict) else {}
    entries[name] = {"sequences": routes.sequences, "steps": routes.steps, "missing": missing}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, entries)
    except (OSError, WriteError) as error:
        logger.info(f"measured times are not stored: {error}")
