"""Influence over distance, compared with full Jacobians and with known properties of each network."""

import pytest
import torch

from manyheads.models.sequence_baselines import Recurrent
from papers.reach.influence import KINDS, RECALLED, Recaller, fading, influence, table, texts


def net(kind: str, length: int = 9) -> Recaller:
    torch.manual_seed(1)
    return Recaller(kind, symbols=3, length=length, width=8, layers=2, kernel=3).double().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_influence_equals_the_norm_of_the_jacobian(kind: str) -> None:
    model, random = net(kind), torch.Generator().manual_seed(1)
    x = torch.randn(1, 9, 8, dtype=torch.float64, generator=random)
    jacobian = torch.autograd.functional.jacobian(model.state, x)[0, :, 0]  # (D, T, D)
    exact = jacobian.square().sum((0, 2))
    copies = influence(model.state, x.expand(4000, -1, -1), random).square().mean(0)
    torch.testing.assert_close(copies, exact, rtol=0.1, atol=1e-12)


def test_influence_on_a_linear_recurrence_decays_as_its_powers() -> None:
    """h' = tanh(w h + x) around zero is h' = w h + x: the derivative by the word k before the last is w^k."""
    layer = Recurrent(1, 1, "rnn").double()
    for name, value in (("weight_ih_l0", 1.0), ("weight_hh_l0", 0.5)):
        layer.layer.get_parameter(name).data.fill_(value)
    random = torch.Generator().manual_seed(1)
    zeros = torch.zeros(2000, 6, 1, dtype=torch.float64)
    found = influence(lambda x: layer(x, None), zeros, random).square().mean(0).sqrt().flip(0)
    torch.testing.assert_close(found / found[0], 0.5 ** torch.arange(6.0, dtype=torch.float64))


def test_marked_words_become_inputs() -> None:
    tokens, asked = texts(5, 7, torch.tensor([0, 6, 2]), torch.Generator().manual_seed(1))
    assert (tokens >= 5).nonzero().tolist() == [[0, 6], [1, 0], [2, 4]]
    assert tokens.max(1).values.sub(5).tolist() == asked.tolist()


def test_the_table_shows_distances_that_double() -> None:
    lines = table({RECALLED: {"net": [k / 100 for k in range(20)]}}).splitlines()
    assert lines[0].split()[3:] == ["0", "1", "2", "4", "8", "16", "19"]
    assert lines[-1].split() == ["net", "0.00", "0.01", "0.02", "0.04", "0.08", "0.16", "0.19"]


def test_mismatched_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected an odd kernel"):
        fading(kernel=4)
