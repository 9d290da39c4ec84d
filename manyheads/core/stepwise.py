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

    Edits of activations, and recordings with gradients, apply to each call separately, as in decoding with a cache.
    """
    recordings, calculations = tap.recordings, tap.calculations
    with_gradients = [recording for recording in recordings if recording.gradients]
    joined = [recording for recording in recordings if not recording.gradients]
    steps = {recording.place: Recording[Tensor]([], recording.place) for recording in joined}
    inputs = Recording[Calculation]([], "attention")
    tap.recordings, tap.calculations = [*steps.values(), *with_gradients], [inputs] * bool(calculations)
    try:
        yield
    finally:
        tap.recordings, tap.calculations = recordings, calculations
    tap.recordings = joined
    for place, step in steps.items():
        if step.calls:
            # Keys and values are the same in all steps.
            tap.store(place, step.calls[0] if place in ("keys", "values") else torch.cat(step.calls, dim=-2))
    tap.recordings = recordings
    if inputs.calls:
        calls = inputs.calls

        def part(heads: Sequence[int] | None) -> Calculation:
            parts = [torch.cat([call.query for call in calls], dim=-2), calls[0].key, calls[0].value]
            query, key, value = (x if heads is None else x[:, list(heads)] for x in parts)
            return Calculation(query, key, value, calls[0].scale, calls[0].added)

        tap.record_calculation(part)
