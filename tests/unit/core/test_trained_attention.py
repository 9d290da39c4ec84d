"""The hand-written gradient of attention for training on a CPU, against automatic differentiation."""

import pytest
import torch
from torch import Tensor

import manyheads.core.trained_attention as module
from manyheads.core.attention import attend
from manyheads.core.masks import Mask

B, H, TQ, TK, KEY, VALUE = 3, 2, 4, 5, 3, 2
PLAIN = torch.zeros(1, 1, 1, 1)  # a bias that changes nothing, but selects automatic differentiation
MASKS = {
    "none": None,
    "padding": Mask(key_lengths=torch.tensor([5, 0, 2])),  # the second row has no key
    "causal": Mask(causal=True),
    "table": Mask(dense=torch.ones(TQ, TK).tril(1).bool()),
    "by head": Mask(dense=torch.rand(B, H, TQ, TK, generator=torch.Generator().manual_seed(0)) > 0.3),
}


@pytest.fixture(params=[1, 2])
def items(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", request.param * H * TQ * TK)


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = ((TQ, KEY), (TK, KEY), (TK, VALUE))
    # values that bf16 represents, in the layout of projections: positions before heads
    return [torch.randn(B, t, H, d).bfloat16().to(dtype).transpose(1, 2).requires_grad_() for t, d in sizes]


def run(dropout: float, mask: Mask | None, bias: Tensor | None, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    parts = inputs(dtype)
    torch.manual_seed(1)
    out = attend(*parts, mask=mask, bias=bias, dropout=dropout, explicit=True)
    uses_own_gradient = out.grad_fn is not None and out.grad_fn.name() == "TrainedAttentionBackward"
    assert uses_own_gradient == (bias is None)
    (out * torch.linspace(-1, 1, VALUE, dtype=dtype)).square().sum().backward()
    return [out.detach(), *(part.grad for part in parts if part.grad is not None)]


@pytest.mark.usefixtures("items")
@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.01])  # PyTorch draws the last one
@pytest.mark.parametrize("rule", MASKS)
def test_gradients_equal_automatic_differentiation(rule: str, dropout: float) -> None:
    got, expected = (run(dropout, MASKS[rule], bias) for bias in (None, PLAIN))
    assert len(got) == 4
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("items")
def test_gradients_pass_gradcheck() -> None:
    mask = MASKS["by head"]
    assert torch.autograd.gradcheck(lambda *parts: attend(*parts, mask=mask, explicit=True), inputs())


@pytest.mark.parametrize("rule", ["none", "causal"])
def test_bf16_is_as_exact_as_automatic_differentiation(rule: str) -> None:
    exact = run(0.0, MASKS[rule], PLAIN, torch.float64)
    errors = []
    for bias in (None, PLAIN):
        with torch.autocast("cpu", torch.bfloat16):
            got = run(0.0, MASKS[rule], bias, torch.bfloat16)
        errors.append(sum(float((a.double() - b).norm() / b.norm()) for a, b in zip(got, exact, strict=True)))
    assert errors[0] < 1.3 * errors[1] < 0.1


def test_a_second_derivative_is_refused() -> None:
    query, key, value = inputs()
    (gradient,) = torch.autograd.grad(attend(query, key, value, explicit=True).square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
