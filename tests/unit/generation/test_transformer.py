"""Decoding with a real model in float64, so that rounding cannot change a choice."""

from typing import Any

import pytest
import torch

from manyheads.core.cache import KVCache
from manyheads.generation import beam_search, greedy, score
from manyheads.models.presets import preset
from manyheads.models.transformer import Transformer

VOCABULARY, END, PAD = 23, 0, 22
LENGTHS = torch.tensor([7, 1, 4, 7, 2, 5])
LIMITS = torch.tensor([12, 9, 3, 0, 12, 10])
SETTINGS: dict[str, Any] = {"start": PAD, "end": END, "suppress": (PAD,)}


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    sizes = {"width": 16, "encoder_heads": 2, "decoder_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
    tokens = {"source_vocab": VOCABULARY, "target_vocab": VOCABULARY, "pad": PAD, "end": END, "start": PAD}
    model = Transformer(preset("transformer/tiny", tie="none", **sizes, **tokens)).double().eval()
    assert model.output is not None
    with torch.no_grad():
        model.output.weight.mul_(6)  # decided enough that sentences differ and some end by themselves
        model.output.weight[END] *= 2
    return model


@pytest.fixture(scope="module")
def source() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, PAD, (len(LENGTHS), int(LENGTHS.max())), generator=generator)


def start(model: Transformer, source: torch.Tensor, rows: list[int] | None = None) -> KVCache:
    """A cache for some rows; padding behind the source is filled with real words, which must not matter."""
    rows = [*range(len(LENGTHS))] if rows is None else rows
    lengths = LENGTHS[rows]
    with torch.inference_mode():
        return model.start(source[rows, : int(lengths.max())], lengths, int(LIMITS.max()) + 1)


class Prefixes:
    """The same model without a cache: each step reads the source and the whole prefix again."""

    def __init__(self, model: Transformer, source: torch.Tensor) -> None:
        self.model = model
        self.source, self.source_lengths = source, LENGTHS
        self.prefix = torch.zeros(len(source), 0, dtype=torch.long)
        self.lengths = torch.zeros(len(source), dtype=torch.long)

    def select(self, rows: torch.Tensor) -> None:
        for name in ("source", "source_lengths", "prefix", "lengths"):
            setattr(self, name, getattr(self, name)[rows])


def uncached_step(tokens: torch.Tensor, cache: Prefixes) -> torch.Tensor:
    cache.prefix = torch.cat([cache.prefix, tokens], dim=1)
    cache.lengths = cache.lengths + tokens.shape[1]
    return cache.model(cache.source, cache.source_lengths, cache.prefix)[:, -tokens.shape[1] :]


def test_cached_equals_uncached(model: Transformer, source: torch.Tensor) -> None:
    one = greedy(model.step, start(model, source), limits=LIMITS, **SETTINGS)
    other = greedy(uncached_step, Prefixes(model, source), limits=LIMITS, **SETTINGS)
    assert [h.tokens for h in one] == [h.tokens for h in other]
    assert len({tuple(h.tokens) for h in one}) >= 5
    many = beam_search(model.step, start(model, source), limits=LIMITS, beam=4, nbest=4, **SETTINGS)
    others = beam_search(uncached_step, Prefixes(model, source), limits=LIMITS, beam=4, nbest=4, **SETTINGS)
    for these, those in zip(many, others, strict=True):
        assert [h.tokens for h in these] == [h.tokens for h in those]
        assert [h.score for h in these] == pytest.approx([h.score for h in those], rel=1e-9)


@pytest.mark.parametrize("beam", [1, 4, 30])
def test_batch_equals_single(model: Transformer, source: torch.Tensor, beam: int) -> None:
    together = beam_search(model.step, start(model, source), limits=LIMITS, beam=beam, **SETTINGS)
    for row, (best,) in enumerate(together):
        limits = LIMITS[row : row + 1]
        ((alone,),) = beam_search(model.step, start(model, source, [row]), limits=limits, beam=beam, **SETTINGS)
        assert best.tokens == alone.tokens
        assert best.score == pytest.approx(alone.score, rel=1e-9)


def test_one_beam_is_greedy(model: Transformer, source: torch.Tensor) -> None:
    one = greedy(model.step, start(model, source), limits=LIMITS, **SETTINGS)
    other = beam_search(model.step, start(model, source), limits=LIMITS, beam=1, **SETTINGS)
    assert [h.tokens for h in one] == [h.tokens for (h,) in other]
    lengths = torch.tensor([len(h.tokens) for h in one])
    assert (lengths <= LIMITS).all()
    assert (lengths < LIMITS).any()


def test_a_hypothesis_score_equals_its_forced_score(model: Transformer, source: torch.Tensor) -> None:
    found = [best for (best,) in beam_search(model.step, start(model, source), limits=LIMITS, **SETTINGS)]
    forced = score(model.step, start(model, source), [h.tokens for h in found], **SETTINGS)
    assert [h.log_probability for h in found] == pytest.approx([h.log_probability for h in forced], rel=1e-9)
    assert [h.score for h in found] == pytest.approx([h.score for h in forced], rel=1e-9)
