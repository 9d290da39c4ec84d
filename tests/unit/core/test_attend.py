"""`attend` compared with loops and with PyTorch's fused kernel; explicit and fused computation agree."""

import math
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.core.attention import attend
from manyheads.core.masks import Mask
from manyheads.core.tap import Tap

B, H, T, TK, DH, DV = 3, 2, 5, 7, 4, 3
LENGTHS = torch.tensor([7, 3, 5])
NONE_LEFT = torch.tensor([7, 0, 2])  # the second row may look nowhere


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(queries: int = T, keys: int = TK, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (B, H, queries, DH), (B, H, keys, DH), (B, H, keys, DV)
    return [random(*shape, seed=i, dtype=dtype).requires_grad_() for i, shape in enumerate(shapes)]


def by_loop(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute attention from its definition, element by element."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(k.shape[2]) if allowed[b, h, i, j]]
                scores = [float(q[b, h, i] @ k[b, h, j]) / math.sqrt(q.shape[-1]) for j in seen]
                if bias is not None:
                    scores = [s + float(bias[b, h, i, j]) for s, j in zip(scores, seen, strict=True)]
                total = sum(math.exp(s) for s in scores)
                for s, j in zip(scores, seen, strict=True):
                    out[b, h, i] += math.exp(s) / total * v[b, h, j]
    return out


CASES: dict[str, tuple[Callable[[], Mask | None], bool]] = {  # a mask, and whether there is a bias
    "nothing": (lambda: None, False),
    "an empty rule": (lambda: Mask(), False),
    "causal, lower right": (lambda: Mask(causal=True), False),
    "causal, offset": (lambda: Mask(causal=True, offset=1), False),
    "causal, row offsets": (lambda: Mask(causal=True, offset=torch.tensor([0, 2, 1])), False),
    "lengths": (lambda: Mask(key_lengths=LENGTHS), False),
    "lengths, none left": (lambda: Mask(key_lengths=NONE_LEFT), False),
    "causal and lengths": (lambda: Mask(causal=True, key_lengths=LENGTHS), False),
    "causal before the first key": (lambda: Mask(causal=True, offset=-2), False),
    "window": (lambda: Mask(window=1), False),
    "segments": (lambda: Mask(segments=(torch.arange(T).expand(B, T) // 2, torch.arange(TK).expand(B, TK) // 3)),
                 False),
    "dense": (lambda: Mask(dense=random(B, H, T, TK, seed=7) > 0), False),
    "bias": (lambda: None, True),
    "bias and lengths": (lambda: Mask(key_lengths=LENGTHS), True),
    "bias and causal": (lambda: Mask(causal=True), True),
    "bias, none left": (lambda: Mask(key_lengths=NONE_LEFT, causal=True), True),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_explicit_equals_fused(case: str, dtype: torch.dtype) -> None:
    make, biased = CASES[case]
    mask = make()
    results = []
    for explicit in (True, False):
        tensors = inputs(dtype=dtype)
        bias = random(1, H, T, TK, seed=9, dtype=dtype).requires_grad_() if biased else None
        out = attend(*tensors, mask=mask, bias=bias, explicit=explicit)
        tensors += [] if bias is None else [bias]
        out.backward(random(*out.shape, seed=5, dtype=dtype))
        results.append([out.detach(), *(t.grad for t in tensors)])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for one, other in zip(*results, strict=True):
        assert one is not None
        assert other is not None
        assert torch.isfinite(one).all()
        assert torch.isfinite(other).all()
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)

    q, k, v = (t.detach().double() for t in inputs(dtype=dtype))
    table = None if mask is None else mask.materialize(T, TK, q.device)
    allowed = torch.ones(B, H, T, TK, dtype=torch.bool) if table is None else table.expand(B, H, T, TK)
    bias = random(1, H, T, TK, seed=9, dtype=dtype).double().expand(B, H, T, TK) if biased else None
    expected = by_loop(q, k, v, allowed, bias).to(dtype)
    assert results[0][0] is not None
    torch.testing.assert_close(results[0][0], expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("explicit", [True, False])
def test_a_square_triangle_equals_the_fused_causal_kernel(explicit: bool) -> None:
    q, k, v = inputs(T, T)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(attend(q, k, v, mask=Mask(causal=True), explicit=explicit), expected)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("normalize", ["softmax", "count", "none"])
def test_a_fully_masked_query_gets_zeros(explicit: bool, normalize: str) -> None:
    tensors = inputs()
    mask = Mask(key_lengths=NONE_LEFT)
    out = attend(*tensors, mask=mask, normalize=normalize, explicit=explicit)  # type: ignore[arg-type]
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert (out[0] != 0).all()
    out.sum().backward()
    for tensor in tensors:
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()
        assert torch.equal(tensor.grad[1], torch.zeros_like(tensor.grad[1]))


def test_causal_masks_align_with_the_last_key() -> None:
    """`is_causal` of the fused kernel aligns with the first one, which is wrong while decoding with a cache."""
    q, k, v = inputs(2, 6)
    trap = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    whole = torch.cat([random(B, H, 4, DH, seed=8), q], dim=2)
    expected = F.scaled_dot_product_attention(whole, k, v, is_causal=True)[:, :, 4:]
    assert (expected - trap).abs().max() > 0.1
    for explicit in (True, False):
        torch.testing.assert_close(attend(q, k, v, mask=Mask(causal=True), explicit=explicit), expected)


@pytest.mark.parametrize("explicit", [True, False])
def test_biases_broadcast(explicit: bool) -> None:
    q, k, v = inputs()
    bias = random(H, T, TK, seed=9)
    whole = attend(q, k, v, bias=bias.expand(B, H, T, TK), explicit=explicit)
    torch.testing.assert_close(attend(q, k, v, bias=bias, explicit=explicit), whole)
    table = attend(q, k, v, bias=bias[0].expand(B, H, T, TK), explicit=explicit)
    torch.testing.assert_close(attend(q, k, v, bias=bias[0], explicit=explicit), table)


def test_parameter_free_self_attention() -> None:
    """Z = softmax(X X^T) X is one call; permuting the words permutes the result."""
    x = random(1, 1, 6, 4)
    z = attend(x, x, x, scale=1.0)
    torch.testing.assert_close(z[0, 0], torch.softmax(x[0, 0] @ x[0, 0].T, dim=-1) @ x[0, 0])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = x[:, :, order]
    torch.testing.assert_close(attend(permuted, permuted, permuted, scale=1.0), z[:, :, order])


def test_additive_attention_uses_the_core() -> None:
    """Bahdanau 2015: the score is w . tanh(U q + W k); the core only normalizes, masks and mixes."""
    q, k, v = (t.detach() for t in inputs())
    u, w, to_score = random(DH, 8, seed=4), random(DH, 8, seed=5), random(8, seed=6)
    scores = torch.tanh((q @ u)[:, :, :, None] + (k @ w)[:, :, None]) @ to_score  # (B, H, T, TK)
    allowed = (torch.arange(TK) < LENGTHS[:, None])[:, None, None]
    expected = torch.softmax(scores - 1e30 * ~allowed, dim=-1) @ v
    torch.testing.assert_close(attend(q, None, v, scores=scores, mask=Mask(key_lengths=LENGTHS)), expected)


def test_normalization_by_the_number_of_keys() -> None:
    q, k, v = (t.detach() for t in inputs())
    dot = q @ k.transpose(-2, -1)
    torch.testing.assert_close(attend(q, k, v, scale=1.0, normalize="count"), dot / TK @ v)
    allowed = (torch.arange(TK) < LENGTHS[:, None])[:, None, None]
    expected = dot * allowed / LENGTHS[:, None, None, None] @ v
    mask = Mask(key_lengths=LENGTHS)
    torch.testing.assert_close(attend(q, k, v, scale=1.0, normalize="count", mask=mask), expected)


@pytest.mark.parametrize("explicit", [True, False])
def test_local_neighborhoods_are_five_dimensional(explicit: bool) -> None:
    """Queries (B, H, places, 1, Dh) attend only to the keys of their place, with a bias for each neighbor."""
    places, neighbors = 6, 3
    q, k, v = random(B, H, places, 1, DH), random(B, H, places, neighbors, DH), random(B, H, places, neighbors, DV)
    bias = random(1, H, 1, 1, neighbors, seed=3)
    out = attend(q, k, v, bias=bias, explicit=explicit)
    for place in range(places):
        at = q[:, :, place], k[:, :, place], v[:, :, place]
        expected = F.scaled_dot_product_attention(*at, attn_mask=bias[:, :, 0].expand(B, H, 1, neighbors))
        torch.testing.assert_close(out[:, :, place], expected)


@pytest.mark.parametrize("explicit", [True, False])
def test_dropout_keeps_the_expectation(explicit: bool) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 5, 4)
    v = torch.eye(5)[None, None]  # so the output is the row of weights
    plain = attend(q, k, v, explicit=explicit)
    drawn = attend(
        q.expand(4000, 1, 1, 4), k.expand(4000, 1, 5, 4), v.expand(4000, 1, 5, 5), dropout=0.25, explicit=explicit
    )
    rate = (drawn == 0).float().mean()
    assert abs(rate - 0.25) < 0.015  # 20,000 draws: five standard deviations
    torch.testing.assert_close(drawn.mean(0), plain[0], atol=0.05, rtol=0.0)
    kept = drawn[drawn != 0] / plain.expand_as(drawn)[drawn != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.75))


@pytest.mark.parametrize("explicit", [True, False])
def test_bf16_autocast_is_close_to_float32(explicit: bool) -> None:
    q, k, v = (t.detach() for t in inputs(dtype=torch.float32))
    expected = attend(q, k, v, mask=Mask(key_lengths=LENGTHS))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = (t.bfloat16() for t in (q, k, v))
        out = attend(*rounded, mask=Mask(key_lengths=LENGTHS), explicit=explicit)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=0.05, rtol=0.05)


def test_scores_stay_float32_under_autocast() -> None:
    """A map whose scores were rounded to bf16 is off by percents; ours follows float32 products of the inputs."""
    q, k, v = ((t.detach() * 4).bfloat16() for t in inputs(dtype=torch.float32))
    tap, seen = Tap(), []

    def look(full: Tensor) -> Tensor:
        seen.append(full)
        return full

    tap.edits.append(("attention", look))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attend(q, k, v, tap=tap)
    expected = torch.softmax(q.double() @ k.double().transpose(-2, -1) / math.sqrt(DH), dim=-1)
    assert seen[0].dtype == torch.float32
    torch.testing.assert_close(seen[0].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_a_bias_that_masks_every_key_gives_zeros(explicit: bool, masked: bool) -> None:
    q, k, v = inputs()
    bias = torch.zeros(T, TK, dtype=torch.float64)
    bias[0] = -math.inf  # nothing left by the bias alone
    bias[1, :3] = -math.inf  # by the bias and, of the second text, by the mask
    mask = Mask(key_lengths=LENGTHS) if masked else None
    out = attend(q, k, v, mask=mask, bias=bias, explicit=explicit)
    assert not out[:, :, 0].any()
    assert out[1, :, 1].any() != masked
    assert out[:, :, 2:].abs().min() > 0
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize(
    ("matmul", "dtype", "trained", "tokens", "explicit"),
    [
        ("highest", torch.float32, False, 32, True),
        ("highest", torch.float32, False, 64, False),
        ("highest", torch.float32, True, 64, False),
        ("medium", torch.float32, False, 128, True),
        ("medium", torch.float32, False, 256, False),
        ("medium", torch.float32, True, 256, True),
        ("medium", torch.float32, True, 257, False),
        ("medium", torch.float64, True, 64, False),  # oneDNN has no products of float64
        ("highest", torch.bfloat16, False, 64, False),
        ("highest", torch.bfloat16, True, 256, True),
    ],
)
def test_the_faster_method_depends_on_the_library_of_the_products(
    matmul: str, dtype: torch.dtype, trained: bool, tokens: int, explicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: matmul)
    fused = Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    x = torch.randn(1, 1, tokens, 4, dtype=dtype, requires_grad=trained)
    attend(x, x, x, mask=Mask(causal=True))
    assert fused.called != explicit
