"""Presets and published sizes of models."""

from typing import Any

import pytest
import torch

from manyheads.analysis.costs import example
from manyheads.models.gpt import GPT
from manyheads.models.presets import FAMILIES, PRESETS, build, family_of, preset


@pytest.mark.parametrize("family", {family_of(name): None for name in PRESETS})
def test_every_preset_builds_its_family(family: str) -> None:
    for name in (name for name in PRESETS if family_of(name) == family):
        with torch.device("meta"):
            model = build(preset(name, **({} if "layers" not in PRESETS[name] else {"layers": 2})))
        assert type(model) is FAMILIES[family].model_class(), name


def test_gpt3_can_be_planned_but_not_built() -> None:
    gpt3 = preset("gpt2/1558m", layers=96, width=12_288, heads=96, max_positions=2048)  # Brown 2020, table 2.1
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build(gpt3).parameters())
    assert 174e9 < parameters < 176e9
    with pytest.raises(ValueError, match=r"would have 17\d,[\d,]* parameters: expected at most"):
        build(gpt3)  # 700 GB


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt/117m", 116_534_784),
        ("gpt2/124m", 124_439_808),
        ("gpt2/355m", 354_823_168),
        ("gpt2/774m", 774_030_080),
        ("gpt2/1558m", 1_557_611_200),
        ("gpt2/baby", 10_745_088),
        ("gpt2/nano", 65 * 128 + 64 * 128 + 4 * (2 * 128 + 12 * 128**2) + 128),
        # token and position tables, two blocks of a norm and four square matrices with biases, and the last norm
        ("gpt/attention-only", 1024 * 128 + 128 * 128 + 2 * (2 * 128 + 4 * 128 * 129) + 2 * 128),
    ],
)
def test_published_counts(name: str, count: int) -> None:
    with torch.device("meta"):
        model = GPT(preset(name))
    assert sum(p.numel() for p in model.parameters()) == count
    assert name in PRESETS
    (tokens,) = example(model, 8)
    assert model(tokens).shape == (1, 8, model.config.vocab)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bert/tiny", {"layers": 1_000_000}, "layers is 1000000: expected an integer from 1 to 1000"),
        ("bert/tiny", {"layers": 0}, "layers is 0: expected an integer from 1 to 1000"),
        ("transformer/tiny", {"width": 10**9}, "width is 1000000000: expected an integer from 1 to"),
        ("gpt2/nano", {"width": 2**20, "layers": 100}, r"would have 1,319,[\d,]* parameters: expected at most"),
        ("vit/ti16", {"feed_forward": 2**20, "width": 2**20, "heads": 1}, "parameters: expected at most"),
    ],
)
def test_oversized_settings_are_reported_before_allocation(name: str, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(preset(name, **settings))
