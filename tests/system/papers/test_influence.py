"""Influence over distance in trained models."""

from pathlib import Path

import torch

from papers.reach.influence import draw, fading, table


def test_convolutions_stop_at_their_receptive_field_and_attention_recalls(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    found = fading(length=12, width=16, layers=2, kernel=3, symbols=4, steps=250)
    assert torch.equal(torch.random.get_rng_state(), state)
    for curves in (found.before, found.after):
        assert [value > 0 for value in curves["convolution"]] == [k <= 2 for k in range(12)]
    assert found.before["rnn"][11] < 0.1 * found.before["rnn"][0]
    far = found.before["attention"][1:]
    assert max(far) < 3 * min(far)
    assert min(found.recalled["attention"]) > 0.9
    assert sum(found.recalled["convolution"][3:]) / 9 < 0.5  # chance is 0.25
    assert "fraction of marked words recalled" in table(found.parts)
    draw(found.parts, tmp_path / "a.png", 1 / found.symbols)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
