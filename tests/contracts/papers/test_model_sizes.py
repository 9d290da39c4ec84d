"""Figure of model sizes over time, compared with published sizes."""

from pathlib import Path

import pytest

from manyheads.analysis import costs
from papers.model_sizes.sizes import GPT3_FLOPS, GPT3_TOKENS, draw, gpt3_cost, sizes


def test_model_sizes_match_publications_in_order(tmp_path: Path) -> None:
    found = sizes()
    assert [size.month for size in found] == sorted(size.month for size in found)
    millions = {size.preset: round(size.parameters / 1e6) for size in found}
    published = {"transformer/big": 213, "gpt/117m": 117, "bert/large-uncased": 340, "gpt2/1558m": 1558,
                 "gpt3/175b": 175_000, "vit/h14": 632, "deit/b16": 87}  # fmt: skip
    assert set(millions) == set(published)
    for preset, count in millions.items():
        assert abs(count / published[preset] - 1) < 0.02, preset
    draw(found, tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")


def test_the_training_of_gpt3_costs_what_the_paper_says() -> None:
    """Compare with table D.1: parameters in millions, and 6 FLOPs for each parameter and token."""
    published = dict(zip(GPT3_FLOPS, (125, 356, 760, 1320, 2650, 6660, 12_850, 174_600), strict=True))
    for name, millions in published.items():
        count = sum(costs.parameters(costs.preset_model(name)).values())
        assert count / 1e6 == pytest.approx(millions, rel=0.004), name
        assert 6 * count * GPT3_TOKENS == pytest.approx(GPT3_FLOPS[name], rel=0.02), name
    large = gpt3_cost("gpt3/175b")
    assert large.parameters == 174_604_259_328
    assert large.counted == pytest.approx(3.14e23, rel=0.05)
