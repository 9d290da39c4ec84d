"""Decoding with an encoder-decoder, from source token ids to target token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import pad
from manyheads.files import JsonObject
from manyheads.generation import Hypothesis, Sampling, beam_search, greedy
from manyheads.generation.constraints import Constraints, forced_search
from manyheads.models.encoder_decoder import EncoderDecoderConfig, TranslationModel
from manyheads.training.distributed_map import distributed_map

R = TypeVar("R")
S = TypeVar("S")

# maximum number of tokens by which a translation may be longer than its source (Vaswani 2017, section 6.1)
MAX_EXTRA_TOKENS = 50
DECODING_TOKENS = 4096  # maximum number of source tokens in a batch times beam width
# Minimum number of rows (sentences times beam width) for each worker that decodes a part of a batch. Each worker reads
# all weights; with fewer rows, reading takes most of the time.
WORKER_ROWS = 16
# maximum number of target tokens in a batch: target length x beam width x number of texts. The KV cache then takes
# about 3 GB for the base model of Vaswani 2017.
MAX_POSITIONS = 65_536


class DecodingModel(Protocol):
    """Model that decodes: a `CompiledModel` of an encoder-decoder, or an `Ensemble`."""

    @property
    def config(self) -> EncoderDecoderConfig: ...
    @property
    def source_pad(self) -> int: ...
    @property
    def compute(self) -> ComputeConfig: ...
    def start(self, source: Tensor, lengths: Tensor | None, capacity: int) -> Any: ...
    def step(self, tokens: Tensor, cache: Any) -> Tensor: ...
    def reduce(self, logits: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]: ...
    def map_parts(self, function: Callable[[list[R]], list[S]], rows: list[R], min_rows: int) -> list[S]: ...


def decode(
    model: DecodingModel,
    sources: Sequence[Sequence[int]],
    *,
    beam: int = 1,
    alpha: float = 0.6,
    nbest: int = 1,
    constraints: Constraints | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[list[Hypothesis]]:
    """Translate sources, given as token ids with an end token.

    Returns the `nbest` hypotheses (candidate translations) of each source, best first.

    model        compiled model in eval mode (`Predictor.compiled`)
    sources      token ids of each source, in any order of length. An empty source has no hypothesis
    beam         beam width; 1 means greedy decoding
    alpha        exponent of the length penalty, as in `beam_search`
    constraints  tokens that must or must not occur in the outputs
    sampling     settings for drawing `nbest` outputs at random. By default, the best outputs are searched
    seed         seed of the sampling. The random numbers of a source depend only on the seed and on its index

    This is a collective operation: the ranks of a distributed job divide the batches, and every rank gets all
    hypotheses.
    """
    hypotheses: list[list[Hypothesis]] = [[] for _ in sources]

    def decode_rows(rows: list[int]) -> list[list[Hypothesis]]:
        source, lengths = pad_sources(model, [sources[row] for row in rows])
        with torch.inference_mode(), model.compute.autocast():
            if sampling is not None:
                seeds = [(seed + row * nbest + i) % 2**63 for row in rows for i in range(nbest)]
                return _sampled(model, source, lengths, sampling, seeds, constraints=constraints, alpha=alpha)
            if constraints is not None and constraints.forced:
                assert len(rows) == 1
                options = _options(model, lengths, alpha)
                del options["reduce"]
                cache, limit = model.start(source, lengths, int(options["limits"]) + 1), int(options.pop("limits"))
                return [forced_search(model.step, cache, constraints, **options, limit=limit, beam=beam, nbest=nbest)]
            return decode_batch(model, source, lengths, beam=beam, alpha=alpha, nbest=nbest, constraints=constraints)

    if constraints is not None and constraints.forced:
        batches = [[row] for row, ids in enumerate(sources) if ids]  # `forced_search` handles one sentence at a time.
    else:
        batches = [*source_batches(model, sources, beam if sampling is None else nbest)]
    min_rows = -(-WORKER_ROWS // (beam if sampling is None else nbest))
    decoded = distributed_map(batches, lambda rows: model.map_parts(decode_rows, rows, min_rows))
    for rows, results in zip(batches, decoded, strict=True):
        for row, ranked in zip(rows, results, strict=True):
            hypotheses[row] = ranked
    return hypotheses


def decode_batch(
    model: DecodingModel,
    source: Tensor,
    lengths: Tensor,
    *,
    beam: int = 1,
    alpha: float = 0.6,
    nbest: int = 1,
    extra_tokens: int = MAX_EXTRA_TOKENS,
    constraints: Constraints | None = None,
) -> list[list[Hypothesis]]:
    """Translate a padded batch of source token ids (B, Ts) with lengths (B,).

    A translation has at most `extra_tokens` tokens more than its source.
    """
    options = _options(model, lengths, alpha, extra_tokens) | {"constraints": constraints}
    cache = model.start(source, lengths, int(options["limits"].max()) + 1)
    if beam == 1:
        return [[hypothesis] for hypothesis in greedy(model.step, cache, **options)]
    return beam_search(model.step, cache, **options, beam=beam, nbest=nbest)


def _options(model: DecodingModel, lengths: Tensor, alpha: float, extra_tokens: int = MAX_EXTRA_TOKENS) -> JsonObject:
    """Return the keyword arguments that all search functions have in common, for sources with lengths (B,)."""
    c = model.config
    return {
        "start": c.start, "end": c.end, "limits": (lengths + extra_tokens).clamp(max=c.max_positions - 1),
        "suppress": never_written(model), "alpha": alpha, "reduce": model.reduce,
    }  # fmt: skip


def _sampled(
    model: DecodingModel,
    source: Tensor,
    lengths: Tensor,
    sampling: Sampling,
    seeds: Sequence[int],
    *,
    constraints: Constraints | None,
    alpha: float,
) -> list[list[Hypothesis]]:
    """Return random outputs for each of B sources, likeliest first.

    seeds  seed of each output, in the order of the sources
    """
    count = len(seeds) // len(source)
    rows = torch.arange(len(source), device=source.device).repeat_interleave(count)
    options = _options(model, lengths[rows], alpha) | {"constraints": constraints}
    cache = model.start(source, lengths, int(options["limits"].max()) + 1)
    cache.select(rows)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def choose(logits: Tensor, active: Tensor) -> Tensor:
        def chances() -> Tensor:
            draws = [torch.rand(1, dtype=torch.float64, generator=generators[i]) for i in active.tolist()]
            return torch.cat(draws)

        return sampling.choose(logits, None, chances)

    drawn = greedy(model.step, cache, **options, choose=choose)
    groups = (drawn[first : first + count] for first in range(0, len(drawn), count))
    return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]


def max_target_length(model: DecodingModel | TranslationModel, length: int) -> int:
    """Return the maximum number of tokens in a translation whose source has `length` tokens, without the end token."""
    return min(length + MAX_EXTRA_TOKENS, model.config.max_positions - 1)


def never_written(model: DecodingModel | TranslationModel) -> list[int]:
    """Return the ids of tokens that must not occur in a translation.

    They are the padding token, and the start token unless it is also the end token.
    """
    c = model.config
    return [token for token in {c.pad, c.start} if token != c.end]


def source_batches(
    model: DecodingModel | TranslationModel, sources: Sequence[Sequence[int]], beam: int, tokens: int = DECODING_TOKENS
) -> Iterator[list[int]]:
    """Divide sources into batches of similar length, and yield the indices of the sources in each batch.

    Empty sources are left out. A batch has at most `tokens` source tokens times beam width, and at most `MAX_POSITIONS`
    target tokens times beam width.
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


def pad_sources(model: DecodingModel, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the sources padded to equal length, (B, Ts), and the original lengths (B,), on the device of the model."""
    padded = torch.from_numpy(pad(sources, model.source_pad)).to(model.compute.device)
    return padded, torch.tensor([len(ids) for ids in sources], device=model.compute.device)
