"""Chunked loss, compared with torch.nn.functional.cross_entropy: value and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.training import loss as module
from manyheads.training.loss import smoothed_cross_entropy

D, V = 6, 11


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)


def inputs(count: int, pad: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((count, D), (V, D), (V,))
    )
    target = torch.randint(0, V, (count,), generator=generator)
    target[::3] = pad
    return hidden, weight, bias, target


def reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, pad: int
) -> Tensor:
    """PyTorch's own, on logits from which the padding token's column is taken out."""
    real = target != pad
    others = torch.arange(V) != pad
    logits = F.linear(hidden, weight, bias)[real][:, others]
    shifted = target[real] - (target[real] > pad).long()
    return F.cross_entropy(logits, shifted, label_smoothing=smoothing, reduction="sum")


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("count", [1, 2, 5, 13])  # fewer than a chunk, and several with a rest
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("pad", [V - 1, 0, 4])
@pytest.mark.parametrize("biased", [True, False])
def test_value_and_gradients_equal_pytorch(count: int, smoothing: float, pad: int, biased: bool) -> None:
    results = []
    for way in ("ours", "theirs"):
        hidden, weight, bias, target = inputs(count, pad)
        some = bias if biased else None
        if way == "ours":
            total = smoothed_cross_entropy(hidden, weight, some, target, smoothing=smoothing, pad=pad)
        else:
            total = reference(hidden, weight, some, target, smoothing, pad)
        (total * 0.37).backward()
        results.append([total.detach(), hidden.grad, weight.grad, *([bias.grad] if biased else [])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("small_chunks")
def test_gradients_pass_gradcheck() -> None:
    hidden, weight, bias, target = inputs(6, V - 1)
    assert torch.autograd.gradcheck(
        lambda h, w, b: smoothed_cross_entropy(h, w, b, target, smoothing=0.1, pad=V - 1), (hidden, weight, bias)
    )


def test_padding_is_zero_with_zero_gradients() -> None:
    hidden, weight, bias, target = inputs(5, 3)
    target.fill_(3)
    total = smoothed_cross_entropy(hidden, weight, bias, target, smoothing=0.1, pad=3)
    assert float(total) == 0.0
    total.backward()
    for tensor in (hidden, weight, bias):
        assert tensor.grad is not None
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_the_padding_row_gets_no_gradient() -> None:
    hidden, weight, bias, target = inputs(9, V - 1)
    smoothed_cross_entropy(hidden, weight, bias, target, smoothing=0.1, pad=V - 1).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert torch.equal(weight.grad[-1], torch.zeros(D, dtype=torch.float64))
    assert float(bias.grad[-1]) == 0.0
    assert (weight.grad[:-1] != 0).all()


@pytest.mark.parametrize("narrow", [False, True])
def test_bf16_states_are_summed_in_float32(narrow: bool) -> None:
    """Under autocast the products are bf16 as well: the error is 8-bit rounding of single values, not of sums."""
    hidden, weight, bias, target = inputs(2000, V - 1, torch.float32)
    rounded = hidden.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        total = smoothed_cross_entropy(rounded, weight, bias, target, smoothing=0.1, pad=V - 1)
    assert total.dtype == torch.float32
    total.backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in (rounded, weight, bias)]
    expected = reference(exact[0], exact[1], exact[2], target, 0.1, V - 1)
    expected.backward()
    assert float(total) == pytest.approx(float(expected), rel=5e-4 if narrow else 1e-5)
    for tensor, wide, bits in zip(
        (rounded, weight, bias), exact, (8, 8 if narrow else 20, 8 if narrow else 20), strict=True
    ):
        assert tensor.grad is not None
        assert tensor.grad.dtype == tensor.dtype
        assert wide.grad is not None
        assert (tensor.grad.double() - wide.grad).norm() < 2.0**-bits * 2 * wide.grad.norm()


def test_a_second_derivative_is_refused() -> None:
    """The gradients are computed with the value, as constants: differentiating them again would be silently wrong."""
    hidden, weight, bias, target = inputs(4, V - 1)
    total = smoothed_cross_entropy(hidden, weight, bias, target, smoothing=0.1, pad=V - 1)
    (gradient,) = torch.autograd.grad(total.square(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.usefixtures("small_chunks")
def test_without_a_padding_token_negative_targets_are_ignored() -> None:
    results = []
    for way in ("ours", "theirs"):
        hidden, weight, bias, target = inputs(13, pad=-100)
        if way == "ours":
            total = smoothed_cross_entropy(hidden, weight, bias, target, smoothing=0.0, pad=None)
        else:
            total = F.cross_entropy(F.linear(hidden, weight, bias), target, ignore_index=-100, reduction="sum")
        total.backward()
        results.append([total.detach(), hidden.grad, weight.grad, bias.grad])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("small_chunks")
def test_a_validation_computes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias, target = inputs(11, 2)
    made = []
    monkeypatch.setattr(Tensor, "addmm_", lambda self, *products: made.append(1))  # the gradient of the weights
    expected = smoothed_cross_entropy(hidden, weight, bias, target, smoothing=0.1, pad=2)
    assert made
    made.clear()
    with torch.no_grad():
        value = smoothed_cross_entropy(hidden, nn.Parameter(weight), nn.Parameter(bias), target, smoothing=0.1, pad=2)
    assert not made
    torch.testing.assert_close(value, expected)
