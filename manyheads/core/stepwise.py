"""Recording of attention that a model computes in a loop over query positions, as one map over all positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from manyheads.core.tap import Calculation, Recording, Tap


@contextmanager
def joined_steps(tap: Tap) -> Iterator[None]:
    """Record all calls of an attention layer in the `with` block as a single call with one query row per position.

    Edits of activations apply to each call separately, as in decoding with a cache.
    """
    recordings, calculations = tap.recordings, tap.calculations
    maps, inputs = Recording[Tensor]([], None, None), Recording[Calculation]([], None, None)
    tap.recordings, tap.calculations = [maps] * bool(recordings), [inputs] * bool(calculations)
    try:
        yield
    finally:
        tap.recordings, tap.calculations = recordings, calculations
    if maps.calls:
        tap.record_map(torch.cat(maps.calls, dim=-2))
    if inputs.calls:
        steps = inputs.calls

        def part(heads: Sequence[int] | None) -> Calculation:
            joined = [torch.cat([step.query for step in steps], dim=-2), steps[0].key, steps[0].value]
            query, key, value = (x if heads is None else x[:, list(heads)] for x in joined)
            return Calculation(query, key, value, steps[0].scale, steps[0].added)

        tap.record_calculation(part)
