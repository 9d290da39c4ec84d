"""From source ids to target ids with an encoder-decoder: for predictors, and for tasks that decode while they train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import pad
from manyheads.generation import Hypothesis, beam_search, greedy
from manyheads.inference import reduction
from manyheads.training.distributed_map import distributed_map

ROOM = 50  # tokens that a translation may be longer than its source (Vaswani 2017, section 6.1)
DECODING_TOKENS = 4096  # source tokens times beams that are translated at once
MOST_POSITIONS = 65_536  # beams times the longest translation: some 3 GB for the base model of Vaswani 2017


def decode(
    model: Any,
    compute: ComputeConfig,
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 1,
    alpha: float = 0.6,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """Translate sources, given as ids with their end token; return the `nbest` hypotheses of each, best first.

    model, route  the model as it computes (`Predictor.compiled`), in eval mode, and how it computes
    sources       in any order; an empty one has no hypothesis
    beam, alpha   as in `beam_search`; a beam of 1 is greedy

    Collective: the ranks of a job divide the batches, and all get all hypotheses.
    """
    hypotheses: list[list[Hypothesis]] = [[] for _ in sources]

    def decoded(rows: list[int]) -> list[list[Hypothesis]]:
        source, lengths = pad_sources(model, [sources[row] for row in rows], compute)
        with torch.inference_mode(), compute.autocast():
            return decode_batch(model, source, lengths, beam=beam, alpha=alpha, nbest=nbest)

    batches = [*source_batches(model, sources, beam)]
    for rows, results in zip(batches, distributed_map(batches, decoded), strict=True):
        for row, ranked in zip(rows, results, strict=True):
            hypotheses[row] = ranked
    return hypotheses


def decode_batch(
    model: Any, source: Tensor, lengths: Tensor, *, beam: int = 1, alpha: float = 0.6, nbest: int = 1, room: int = ROOM
) -> list[list[Hypothesis]]:
    """Translate a padded batch of sources (B, Ts) with lengths (B,) by at most `room` tokens more than they have."""
    c = model.config
    limits = (lengths + room).clamp(max=c.max_positions - 1)
    cache = model.start(source, lengths, int(limits.max()) + 1)
    how: dict[str, Any] = {
        "start": c.start, "end": c.end, "limits": limits, "suppress": never_written(model), "alpha": alpha,
        "reduce": reduction(model),
    }  # fmt: skip
    if beam == 1:
        return [[hypothesis] for hypothesis in greedy(model.step, cache, **how)]
    return beam_search(model.step, cache, **how, beam=beam, nbest=nbest)


def max_target_length(model: Any, length: int) -> int:
    """Return the largest number of tokens of the translation of a source of that length, without the end token."""
    return min(length + ROOM, model.config.max_positions - 1)


def never_written(model: Any) -> list[int]:
    """Return the ids that no translation has: padding, and the start token if it is not the end token."""
    c = model.config
    return [token for token in {c.pad, c.start} if token != c.end]


def source_batches(
    model: Any, sources: Sequence[Sequence[int]], beam: int, tokens: int = DECODING_TOKENS
) -> Iterator[list[int]]:
    """Yield the rows of each batch: sources of similar length, without empty ones.

    A batch has at most `tokens` source tokens times beams, and its translations fit into `MOST_POSITIONS`.
    """
    rows = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i]))
    batch: list[int] = []
    for row in rows:
        length, beams = len(sources[row]), (len(batch) + 1) * beam
        if batch and (beams * length > tokens or beams * (max_target_length(model, length) + 1) > MOST_POSITIONS):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def pad_sources(model: Any, sources: Sequence[Sequence[int]], compute: ComputeConfig) -> tuple[Tensor, Tensor]:
    """Return the sources padded (B, Ts), and their lengths (B,), on the device of the route."""
    padded = torch.from_numpy(pad(sources, model.source_pad)).to(compute.device)
    return padded, torch.tensor([len(ids) for ids in sources], device=compute.device)
