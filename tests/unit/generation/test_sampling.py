"""Sampling: filters compared with transformers, batched equal to single, seeds, long texts."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from manyheads.generation import Sampling, sample
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset

V, CONTEXT = 29, 16
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3], [2, 3]]
LIMITS = [8, 40, 30, 0]
WAYS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {},
    {"temperature": 0.6, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8, "repetition_penalty": 1.2},
]


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(preset("gpt2/nano", vocab=V, width=16, layers=2, heads=2, max_positions=CONTEXT)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.6)
    return model


def texts(model: GPT, prompts: list[list[int]], way: dict[str, Any], seeds: list[int], **more: Any) -> list[list[int]]:
    found = [list[int]() for _ in prompts]
    limits = more.pop("limits", LIMITS[: len(prompts)])
    for step in sample(
        model.start, model.step, prompts, Sampling(**way), context=CONTEXT, limits=limits, seeds=seeds, **more
    ):
        for row, token in step:
            found[row].append(token)
    return found


def logits(rows: int = 6) -> Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3


def test_resampling_filters_equal_transformers() -> None:
    text = torch.randint(V, (6, 9), generator=torch.Generator().manual_seed(5))
    seen = torch.zeros(6, V, dtype=torch.bool).scatter(1, text, True)
    ways = product((1.0, 0.3, 2.0), (None, 1, 4, V, 1000), (None, 0.05, 0.5, 0.95, 1.0), (1.0, 1.3, 0.7))
    for temperature, top_k, top_p, penalty in ways:
        processors: list[LogitsProcessor] = [RepetitionPenaltyLogitsProcessor(penalty)]
        processors += [TemperatureLogitsWarper(temperature)]
        processors += [TopKLogitsWarper(top_k)] if top_k is not None else []
        processors += [TopPLogitsWarper(top_p)] if top_p is not None else []
        expected = logits()
        for processor in processors:
            expected = processor(text, expected)
        found = Sampling(temperature, top_k, top_p, penalty).filtered(logits(), seen)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", WAYS)
def test_batch_equals_single_with_prompts_of_unequal_length(model: GPT, way: dict[str, Any]) -> None:
    seeds = [11, 12, 13, 14]
    together = texts(model, PROMPTS, way, seeds)
    assert [len(text) for text in together] == LIMITS
    for prompt, limit, seed, found in zip(PROMPTS, LIMITS, seeds, together, strict=True):
        assert texts(model, [prompt], way, [seed], limits=[limit]) == [found]
    assert texts(model, PROMPTS[::-1], way, seeds[::-1], limits=LIMITS[::-1]) == together[::-1]


@pytest.mark.parametrize("way", WAYS[:2])
def test_greedy_equals_the_argmax_without_cache(model: GPT, way: dict[str, Any]) -> None:
    (found,) = texts(model, [PROMPTS[0]], way, [0])
    text = [*PROMPTS[0]]
    for token in found:
        scores = model(torch.tensor([text]))[0, -1:]
        expected = RepetitionPenaltyLogitsProcessor(way.get("repetition_penalty", 1.0))(torch.tensor([text]), scores)
        assert int(expected.argmax()) == token
        text.append(token)
    assert len(set(found)) > 1


def test_generation_beyond_the_context_continues_from_its_second_half(model: GPT) -> None:
    (found,) = texts(model, [PROMPTS[2]], {"temperature": 0.0}, [0], limits=[40])
    text = [*PROMPTS[2]]
    for token in found:
        first = 0
        while len(text) - first > CONTEXT:
            first += CONTEXT // 2
        assert int(model(torch.tensor([text[first:]]))[0, -1].argmax()) == token
        text.append(token)


def test_a_seed_reproduces_a_text(model: GPT) -> None:
    prompts = [PROMPTS[0]] * 4
    one, two, three, again = texts(model, prompts, {}, [1, 2, 3, 1], limits=[12] * 4)
    assert one == again
    assert len({tuple(one), tuple(two), tuple(three)}) == 3


def test_samples_follow_the_models_distribution() -> None:
    """20,000 draws of one token: every frequency is within five standard deviations."""
    scores, count = logits(1), 20_000
    sampling = Sampling(temperature=0.8, top_p=0.9)
    rng = torch.Generator().manual_seed(7)
    drawn = sampling.choose(
        scores.expand(count, V), None, lambda: torch.rand(count, dtype=torch.float64, generator=rng)
    )
    shares = sampling.filtered(scores)[0].softmax(-1).tolist()
    found = Counter(drawn.tolist())
    for token, share in enumerate(shares):
        assert abs(found[token] - share * count) <= 5 * (share * (1 - share) * count) ** 0.5, token
        assert share > 0 or token not in found


def test_texts_end_at_the_end_token_or_the_callers_request(model: GPT) -> None:
    (whole,) = texts(model, [PROMPTS[1]], {}, [5], limits=[30])
    end = whole[6]
    cut = whole[: whole.index(end)]
    (found,) = texts(model, [PROMPTS[1]], {}, [5], limits=[30], end=end)
    assert found == cut
    told: list[tuple[int, int]] = []

    def over(row: int, token: int) -> bool:
        told.append((row, token))
        return row == 1 and len([1 for each, _ in told if each == 1]) == 3

    both = texts(model, [PROMPTS[1], PROMPTS[1]], {}, [5, 5], limits=[30, 30], over=over)
    assert both == [whole, whole[:3]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0: expected 0, or a number from 0.001 to 1000"),
        ({"temperature": float("nan")}, "temperature is nan: expected 0, or a number from"),
        ({"top_k": 0}, "top_k is 0: expected at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0: expected a number above 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0: expected a number from 0.001 to 1000"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)
