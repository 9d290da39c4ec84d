"""Measured receptive fields, compared with the formula and with brute force."""

from pathlib import Path

import pytest
import torch
from torch import nn

from papers.command import run
from papers.reach.__main__ import main
from papers.reach.receptive_field import draw, growth, influence


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_receptive_fields_grow_with_layers(kernel: int) -> None:
    stacks = growth(layers=4, kernel=kernel, length=15, width=6)
    assert stacks.fields == [(n, min(15, 1 + n * (kernel - 1)), 15) for n in range(1, 5)]
    reach = (kernel - 1) // 2
    assert stacks.convolution[0].nonzero().flatten().tolist() == list(range(7 - reach, 8 + reach))


def test_influence_equals_the_effect_of_a_change() -> None:
    torch.manual_seed(1)
    layer = nn.Conv1d(4, 4, 3, padding="same", dilation=2).double()

    def network(x: torch.Tensor) -> torch.Tensor:
        return layer(x.transpose(1, 2)).transpose(1, 2)

    measured = influence(network, 11, 4)
    x = torch.randn(1, 11, 4, dtype=torch.float64)
    changed = []
    for position in range(11):
        other = x.clone()
        other[0, position] += 1.0
        changed.append(bool((network(other)[0, 5] != network(x)[0, 5]).any()))
    assert (measured > 0).tolist() == changed
    assert changed == [position in (3, 5, 7) for position in range(11)]


def test_the_command_prints_the_table_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["receptive-field", "--layers", "3", "--length", "11", "--width", "4", "--out", str(tmp_path / "r.png")]
    assert run(main, words) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["layers", "convolution", "attention"], ["1", "3", "11"], ["2", "5", "11"], ["3", "7", "11"],
    ]  # fmt: skip
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    state = torch.random.get_rng_state()
    draw(growth(layers=1, length=5, width=4), tmp_path / "other.png")
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers stay as they were"
    with pytest.raises(ValueError, match="odd kernel"):
        growth(kernel=4)
