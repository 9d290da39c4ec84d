"""Continuous batching: each text equals its result alone, and the batch holds the maximum number that fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyheads.generation import ContinuousBatch, Sampling, Text, sample
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset
from manyheads.models.universal import UniversalSequence, UniversalSequenceConfig

V, CONTEXT, UNIT = 29, 64, 8
UNIVERSAL: dict[str, Any] = {
    "vocab": V, "width": 16, "heads": 2, "feed_forward": 24, "steps": 2, "max_positions": CONTEXT, "head": "decoder",
}  # fmt: skip


def models() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "gpt": GPT(preset("gpt2/nano", vocab=V, width=16, layers=2, heads=2, max_positions=CONTEXT)),
        "universal": UniversalSequence(UniversalSequenceConfig(**UNIVERSAL)),
        "convolving": UniversalSequence(UniversalSequenceConfig(**UNIVERSAL, transition="separable")),
    }


@pytest.mark.parametrize("kind", ["gpt", "universal", "convolving"])
def test_a_finished_text_frees_its_memory(kind: str) -> None:
    """Memory is freed when a text ends, even if the batch is never empty. The other texts stay the same."""
    model = models()[kind].double().eval()
    batch = ContinuousBatch(model.start, model.step, context=CONTEXT, max_cached=2 * CONTEXT, unit=UNIT)
    long, companion = Text([3], Sampling(), 50, 1), Text([5, 2], Sampling(), 20, 2)
    batch.admit([long, companion])
    for _ in range(3):
        batch.step()
    batch.drop([long])
    short = [Text([*range(2, 4 + i % 3)], Sampling(), 9 + i % 4, 10 + i) for i in range(20)]  # of 16 positions each
    batch.admit(short)
    together = 0
    while batch.busy:
        batch.step()
        together = max(together, len(batch.texts))
    # the companion's rows have 24 positions: first 5 rows together, then 8 rows of 16 positions
    assert together == 2 * CONTEXT // 16
    for text in (companion, *short):
        alone = sample(
            model.start, model.step, [text.ids[: text.prompt]], Sampling(), context=CONTEXT, limits=[text.limit],
            seeds=[text.seed],
        )  # fmt: skip
        assert text.ids[text.prompt :] == [token for step in alone for _, token in step]
