"""Dropout with one random byte per element: rate, scale, gradient, repeatability."""

import pytest
import torch

from manyheads.core.dropout import drop_path, dropout
from tests.support.timm_stub import load_timm

N = 200_000


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9, 0.01, 0.999])
def test_rate_and_scale_are_applied(p: float) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(N), p)
    rate = float((out == 0).double().mean())
    rounded = round(p * 256) / 256
    # rates that 8 bits cannot represent use PyTorch's dropout
    expected = rounded if abs(rounded - p) <= min(p, 1 - p) / 50 else p
    assert abs(rate - p) < 0.025 * min(p, 1 - p) + 5 * (p * (1 - p) / N) ** 0.5
    assert abs(rate - expected) < 5 * (expected * (1 - expected) / N) ** 0.5
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - expected)))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 11), (0, 4), ()])
def test_any_shape_is_allowed(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, dtype=torch.float64)
    out = dropout(x, 0.5)
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    assert ((out == 0) | (out == 2)).all()


def test_neighbors_are_independent() -> None:
    """Eight elements share one draw of the generator: their bytes must not."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(N), 0.5) != 0).double().view(-1, 8)
    correlation = torch.corrcoef(kept.T)
    off = correlation - torch.eye(8, dtype=torch.float64)
    assert off.abs().max() < 5 / (N / 8) ** 0.5
    assert (kept.mean(0) - 0.5).abs().max() < 2.5 / (N / 8) ** 0.5


def test_gradients_use_the_dropout_mask_of_the_output() -> None:
    torch.manual_seed(0)
    x = torch.rand(50, 40).add(1).requires_grad_()
    out = dropout(x, 0.3)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(out.detach(), x.detach() * x.grad)
    assert 0.2 < float((x.grad == 0).double().mean()) < 0.4


def test_disabled_augmentation() -> None:
    x = torch.randn(5)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x
    assert torch.equal(dropout(x, 1.0), torch.zeros(5))


def test_conversions_are_repeatable() -> None:
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = dropout(x, 0.4), dropout(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.4), first)
    assert not torch.equal(first, second)


def test_probabilities_are_normalized() -> None:
    with pytest.raises(AssertionError, match=r"1\.5"):
        dropout(torch.ones(3), 1.5)


def test_drop_path_equals_timm() -> None:
    """The same items dropped and the same scale, for the same draws of the generator."""
    load_timm()
    from timm.layers import drop_path as theirs

    x = torch.randn(64, 3, 5)
    torch.manual_seed(4)
    expected = theirs(x, 0.3, training=True)
    torch.manual_seed(4)
    out = drop_path(x, 0.3)
    torch.testing.assert_close(out, expected)
    assert 0 < int((out == 0).all((1, 2)).sum()) < 64
    assert drop_path(x, 0.3, training=False) is x
    assert drop_path(x, 0.0) is x
    with pytest.raises(AssertionError, match="below 1"):
        drop_path(x, 1.0)
