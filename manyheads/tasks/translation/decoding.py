"""Decoding with an encoder-decoder, from source token ids to target token ids."""

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

# maximum number of tokens by which a translation may be longer than its source (Vaswani 2017, section 6.1)
MAX_EXTRA_TOKENS = 50
DECODING_TOKENS = 4096  # maximum number of source tokens in a batch times beam width
# maximum number of target tokens in a batch: target length x beam width x number of texts. The KV cache then takes
# about 3 GB for the base model of Vaswani 2017.
MAX_POSITIONS = 65_536


def decode(
    model: Any,
    compute: ComputeConfig,
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 1,
    alpha: float = 0.6,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """Translate sources, given as token ids with an end token.

    Returns the `nbest` hypotheses (candidate translations) of each source, best first.

    model, compute  the compiled model (`Predictor.compiled`) in eval mode, and its compute settings
    sources         token ids of each source, in any order of length; an empty source has no hypothesis
    beam, alpha     beam width and length penalty, as in `beam_search`; a beam width of 1 is greedy decoding

    This is a collective operation: the ranks of a distributed job divide the batches, and every rank gets all
    hypotheses.
    """
    hypotheses: list[list[Hypothesis]] = [[] for _ in sources]

    def decode_rows(rows: list[int]) -> list[list[Hypothesis]]:
        source, lengths = pad_sources(model, [sources[row] for row in rows], compute)
        with torch.inference_mode(), compute.autocast():
            return decode_batch(model, source, lengths, beam=beam, alpha=alpha, nbest=nbest)

    batches = [*source_batches(model, sources, beam)]
    for rows, results in zip(batches, distributed_map(batches, decode_rows), strict=True):
        for row, ranked in zip(rows, results, strict=True):
            hypotheses[row] = ranked
    return hypotheses


def decode_batch(
    model: Any,
    source: Tensor,
    lengths: Tensor,
    *,
    beam: int = 1,
    alpha: float = 0.6,
    nbest: int = 1,
    extra_tokens: int = MAX_EXTRA_TOKENS,
) -> list[list[Hypothesis]]:
    """Translate a padded batch of source token ids (B, Ts) with lengths (B,).

    A translation has at most `extra_tokens` tokens more than its source.
    """
    c = model.config
    limits = (lengths + extra_tokens).clamp(max=c.max_positions - 1)
    cache = model.start(source, lengths, int(limits.max()) + 1)
    options: dict[str, Any] = {
        "start": c.start, "end": c.end, "limits": limits, "suppress": never_written(model), "alpha": alpha,
        "reduce": reduction(model),
    }  # fmt: skip
    if beam == 1:
        return [[hypothesis] for hypothesis in greedy(model.step, cache, **options)]
    return beam_search(model.step, cache, **options, beam=beam, nbest=nbest)


def max_target_length(model: Any, length: int) -> int:
    """Return the maximum number of tokens in a translation whose source has `length` tokens, without the end token."""
    return min(length + MAX_EXTRA_TOKENS, model.config.max_positions - 1)


def never_written(model: Any) -> list[int]:
    """Return the ids of tokens that must not occur in a translation.

    They are the padding token, and the start token unless it is also the end token.
    """
    c = model.config
    return [token for token in {c.pad, c.start} if token != c.end]


def source_batches(
    model: Any, sources: Sequence[Sequence[int]], beam: int, tokens: int = DECODING_TOKENS
) -> Iterator[list[int]]:
    """Yield the indices of the sources in each batch: sources of similar length, without empty sources.

    A batch has at most `tokens` source tokens times beam width, and at most `MAX_POSITIONS` target tokens times beam
    width.
    """
    rows = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i]))
    batch: list[int] = []
    for row in rows:
        length, beams = len(sources[row]), (len(batch) + 1) * beam
        if batch and (beams * length > tokens or beams * (max_target_length(model, length) + 1) > MAX_POSITIONS):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def pad_sources(model: Any, sources: Sequence[Sequence[int]], compute: ComputeConfig) -> tuple[Tensor, Tensor]:
    """Return the sources padded to equal length, (B, Ts), and the original lengths (B,), on the device of the model."""
    padded = torch.from_numpy(pad(sources, model.source_pad)).to(compute.device)
    return padded, torch.tensor([len(ids) for ids in sources], device=compute.device)
