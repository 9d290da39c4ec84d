"""Limit of processor time that is reliable on slow and busy machines."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

LIMIT = 0.5  # seconds
NOISE = 1.8  # times that a busy machine may be slower within a test than right after it
REFERENCE = {"counting": 0.09, "filling": 0.015}  # seconds of `probes` on a 2026 cloud core


def clock() -> float:
    """Return the seconds of all threads; those of the system, such as of new pages, differ between machines."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def probes() -> dict[str, float]:
    """Return the seconds of a million additions, and of new tensors that random numbers fill."""
    start, total = clock(), 0
    for number in range(1_000_000):
        total += number * number
    counted = clock()
    for _ in range(8):
        torch.empty(500_000).normal_()
    return {"counting": counted - start, "filling": clock() - counted}


class LimitExceeded(Exception):
    """The processor time is clearly over the limit."""


@contextmanager
def watched(
    clock: Callable[[], float] = clock, probes: Callable[[], dict[str, float]] = probes
) -> Generator[None, None, None]:
    """Limit the processor time of a block, by the slowest of the probes on this machine right after it.

    Collections of all objects do not count: they come at any time, and visit all that the process holds.
    """
    collections: list[float] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            if phase == "start":
                collections.append(-clock())
            else:
                collections[-1] += clock()

    gc.callbacks.append(collected)
    before = clock()
    try:
        yield
    finally:
        seconds = clock() - before
        gc.callbacks.remove(collected)
    seconds -= sum(collections)
    if seconds > LIMIT:
        slowness = max(1.0, *(took / REFERENCE[name] for name, took in probes().items()))
        if seconds > (limit := LIMIT * NOISE * slowness):
            raise LimitExceeded(f"{seconds:.2f} s of processor time, expected at most {limit:.2f}")
