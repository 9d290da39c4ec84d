"""Feed-forward activations, token embeddings, initialization."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import QuickGELUActivation

from manyheads.core.layers import (
    ACTIVATIONS,
    BatchNorm,
    FeedForward,
    PatchEmbedding,
    TokenEmbedding,
    count_patches,
    skip_init,
    xavier_uniform,
)
from manyheads.errors import UserError

THEIRS = {"relu": nn.ReLU(), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"),
          "quick_gelu": QuickGELUActivation()}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward(activation: str) -> None:
    layer = FeedForward(6, 10, activation)
    x = torch.randn(2, 3, 6)
    expected = nn.Sequential(layer.expand, THEIRS[activation], layer.contract)(x)
    torch.testing.assert_close(layer(x), expected)


def test_both_gelu_variants_differ_slightly() -> None:
    """BERT's and GPT-2's original code has the tanh form, transformers' "gelu" is the erf form: at most 4.7e-4."""
    x = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    erf = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), erf)
    assert float((erf - ACTIVATIONS["gelu_tanh"](x)).abs().max()) == pytest.approx(4.7e-4, abs=1e-5)


def test_feed_forward_dropout_acts_on_hidden_activations() -> None:
    torch.manual_seed(0)
    layer = FeedForward(4, 401, dropout=0.5)
    with torch.no_grad():
        layer.expand.weight.zero_()
        layer.expand.bias.fill_(1.0)
        layer.contract.weight.fill_(1.0)
        layer.contract.bias.zero_()
    out = layer(torch.zeros(1, 4)).detach()
    assert torch.equal(out, out[:, :1].expand(1, 4))  # every output sums the same kept activations
    assert float(out[0, 0]) != 401.0  # a sum of ones that were doubled is even
    assert float(out[0, 0]) == pytest.approx(401.0, abs=100)
    assert layer.eval()(torch.zeros(1, 4))[0, 0].item() == 401.0


def test_unknown_activation_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'swish'.*relu, silu, gelu, gelu_tanh"):
        FeedForward(4, 8, "swish")


def test_embedding_scale_and_padding() -> None:
    torch.manual_seed(0)
    plain, scaled = TokenEmbedding(500, 64, pad=499), TokenEmbedding(500, 64, pad=499, scaled=True)
    scaled.load_state_dict(plain.state_dict())
    tokens = torch.tensor([[3, 499, 7]])
    torch.testing.assert_close(plain(tokens), F.embedding(tokens, plain.weight))
    torch.testing.assert_close(scaled(tokens), plain(tokens) * 8)
    assert torch.equal(plain(tokens)[0, 1], torch.zeros(64))
    # Vaswani's scale and the drawn N(0, 1/D) together: inputs of unit variance
    assert float(scaled(torch.arange(499)).std()) == pytest.approx(1.0, abs=0.03)
    scaled(tokens).sum().backward()
    assert scaled.weight.grad is not None
    assert scaled.weight.grad[[3, 499]].sum(1).tolist() == [64 * 8, 0]


def test_xavier_skips_embeddings_and_norms() -> None:
    module = nn.ModuleDict({"linear": nn.Linear(30, 60), "embedding": TokenEmbedding(9, 30), "norm": nn.LayerNorm(30)})
    before = {name: p.clone() for name, p in module.named_parameters()}
    xavier_uniform(module)
    weight = module["linear"].weight
    assert isinstance(weight, torch.Tensor)
    bound = math.sqrt(6 / (30 + 60))
    assert bound * 0.95 < float(weight.abs().max()) <= bound
    changed = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"linear.weight", "linear.bias"}


def test_patches_are_vectors_row_by_row() -> None:
    layer = PatchEmbedding(3, 5, channels=2)
    x = torch.randn(2, 2, 6, 9)
    out = layer(x)
    assert layer.bias is not None
    assert out.shape == (2, 6, 5)
    for row in range(2):
        for column in range(3):
            patch = x[:, :, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3].flatten(1)  # (B, C * P * P)
            expected = patch @ layer.weight.flatten(1).T + layer.bias
            torch.testing.assert_close(out[:, 3 * row + column], expected)


def test_batch_normalization_sees_only_real_tokens() -> None:
    """In training, eval mode and the backward pass, it equals PyTorch's on the real tokens of all texts, in a row."""
    torch.manual_seed(0)
    ours, theirs = BatchNorm(5, eps=1e-3).double(), nn.BatchNorm1d(5, eps=1e-3).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.uniform_(0.5, 2)
    ours.norm.load_state_dict(theirs.state_dict())
    x, lengths = torch.randn(3, 6, 5, dtype=torch.float64, requires_grad=True), torch.tensor([6, 1, 4])
    real = torch.arange(6) < lengths[:, None]
    x.data[~real] = torch.nan
    packed = x.detach()[real].requires_grad_()
    for _ in range(3):
        found, expected = ours(x, lengths), theirs(packed)
        torch.testing.assert_close(found[real], expected, rtol=0, atol=1e-14)
        assert not found[~real].any()
    torch.testing.assert_close(ours.norm.state_dict(), theirs.state_dict(), rtol=0, atol=1e-14)
    weight = torch.randn_like(expected)
    (found[real] * weight).sum().backward()
    (expected * weight).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[real], packed.grad, rtol=0, atol=1e-13)
    assert not x.grad[~real].any()
    ours.eval()
    torch.testing.assert_close(ours(x, lengths)[real], theirs.eval()(packed), rtol=0, atol=1e-14)
    assert torch.equal(ours(x.detach()[1:2, :1])[0, 0], ours(x, lengths)[1, 0])


def test_batch_normalization_needs_two_tokens_in_training() -> None:
    norm, x = BatchNorm(5), torch.randn(1, 4, 5)
    for given in ((x, torch.tensor([1])), (x[:, :1],)):
        with pytest.raises(UserError, match="expected at least two tokens in a batch, found one"):
            norm(*given)
    assert norm.eval()(x[:, :1]).isfinite().all()


def test_patches_begin_with_unit_variance() -> None:
    torch.manual_seed(0)
    out = PatchEmbedding(4, 256)(torch.randn(8, 3, 32, 32))
    assert float(out.detach().std()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("side", "nearest"), [(30, "28 and 32"), (3, "4"), (33, "32 and 36"), (1, "4")])
def test_sides_must_be_divisible_by_the_patch(side: int, nearest: str) -> None:
    assert count_patches(32, 4) == 8
    told = f"{side} pixels are not divisible by the patch size 4: the nearest valid sizes are {nearest}"
    message = f"^{told}$"
    with pytest.raises(ValueError, match=message):
        count_patches(side, 4)
    with pytest.raises(ValueError, match=message):
        PatchEmbedding(4, 5)(torch.zeros(1, 3, 32, side))
    with pytest.raises(ValueError, match=r"expected images of shape \(B, 3, Y, X\), found \(1, 1, 8, 8\)"):
        PatchEmbedding(4, 5)(torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize(
    "build", [lambda: nn.Linear(4, 4), lambda: nn.Embedding(4, 4), lambda: PatchEmbedding(2, 3, 4)]
)
def test_initialization_is_skipped_while_weights_are_loaded(build: Callable[[], nn.Module]) -> None:
    before = torch.get_rng_state()
    with skip_init():
        layer = build()
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(parameter.any() for parameter in layer.parameters())
