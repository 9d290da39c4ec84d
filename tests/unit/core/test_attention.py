"""Multi-head attention, compared with torch.nn.MultiheadAttention and published counts."""

import pytest
import torch
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.masks import Mask
from tests.support.porting import port_attention, randomize

B, T, TM, WIDTH, HEADS = 3, 5, 7, 12, 3
LENGTHS = torch.tensor([7, 2, 4])


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def pair(memory_width: int | None = None) -> tuple[nn.MultiheadAttention, Attention]:
    torch.manual_seed(0)
    wide = WIDTH if memory_width is None else memory_width
    theirs = nn.MultiheadAttention(WIDTH, HEADS, kdim=wide, vdim=wide, batch_first=True)
    randomize(theirs)
    ours = Attention(WIDTH, HEADS, memory_width=memory_width)
    port_attention(theirs, ours)
    return theirs, ours


def same_gradients(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    matrices = [theirs.in_proj_weight] if theirs.in_proj_weight is not None else [
        theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    ]  # fmt: skip
    expected = torch.cat([m.grad.flatten() for m in matrices if m.grad is not None])
    layers = (ours.query, ours.key, ours.value)
    got = torch.cat([layer.weight.grad.flatten() for layer in layers if layer.weight.grad is not None])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.output.weight.grad, theirs.out_proj.weight.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("rule", ["none", "padding", "causal", "both"])
def test_self_attention_equals_pytorch(rule: str, explicit: bool, training: bool) -> None:
    theirs, ours = pair()
    theirs.train(training)
    ours.train(training).explicit = explicit
    x = torch.randn(B, TM, WIDTH)
    padding = torch.arange(TM) >= LENGTHS[:, None] if rule in ("padding", "both") else None
    causal = torch.ones(TM, TM).triu(1).bool() if rule in ("causal", "both") else None
    expected, maps = theirs(x, x, x, key_padding_mask=padding, attn_mask=causal, average_attn_weights=False)
    mask = Mask(key_lengths=None if padding is None else LENGTHS, causal=causal is not None)
    out = ours(x, mask=mask)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert maps.shape == (B, HEADS, TM, TM)
    gradient = torch.randn_like(out)
    expected.backward(gradient)
    out.backward(gradient)
    same_gradients(theirs, ours)


@pytest.mark.parametrize("memory_width", [None, 8])
def test_cross_attention_equals_pytorch(memory_width: int | None) -> None:
    theirs, ours = pair(memory_width)
    x, memory = torch.randn(B, T, WIDTH), torch.randn(B, TM, memory_width or WIDTH)
    expected, _ = theirs(x, memory, memory, key_padding_mask=torch.arange(TM) >= LENGTHS[:, None])
    out = ours(x, memory, mask=Mask(key_lengths=LENGTHS))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    gradient = torch.randn_like(out)
    expected.backward(gradient)
    out.backward(gradient)
    same_gradients(theirs, ours)


def test_pruned_heads_cost_nothing() -> None:
    """Vaswani 2017, table 3 (A): with width / heads a head, the count does not depend on the number of heads."""
    assert {count(Attention(24, heads)) for heads in (1, 2, 3, 4, 8, 24)} == {4 * (24 * 24 + 24)}


def test_free_head_width_counts_equal_keras() -> None:
    """keras.layers.MultiHeadAttention(num_heads=2, key_dim=32) on width 32: 8,416 parameters."""
    attention = Attention(32, heads=2, head_width=32)
    assert sum(count(layer) for layer in (attention.query, attention.key, attention.value)) == 6_336
    assert count(attention.output) == 2_080
    assert count(attention) == 8_416
    assert attention(torch.randn(2, 5, 32)).shape == (2, 5, 32)


@pytest.mark.parametrize("explicit", [True, False])
def test_narrow_keys_equal_wide_ones_with_zeros(explicit: bool) -> None:
    """torch.nn.MultiheadAttention has a single width: pad with zeros, and rescale the queries to its larger divisor."""
    theirs, wide = pair()
    narrow, kept = Attention(WIDTH, HEADS, key_width=2), 2 / wide.head_width
    assert count(wide) - count(narrow) == 2 * HEADS * (wide.head_width - 2) * (WIDTH + 1)
    narrow.explicit = explicit
    state = wide.state_dict()
    with torch.no_grad():
        for name in ("query", "key"):
            for part in ("weight", "bias"):
                by_head = state[f"{name}.{part}"].unflatten(0, (HEADS, -1))  # (H, Dh, ...)
                state[f"{name}.{part}"] = by_head[:, :2].flatten(0, 1)
                mine = theirs.in_proj_weight if part == "weight" else theirs.in_proj_bias
                rows = mine.unflatten(0, (3, HEADS, -1))[0 if name == "query" else 1]
                rows[:, 2:] = 0
                if name == "query":
                    rows /= kept**0.5
    narrow.load_state_dict(state)
    x = torch.randn(B, T, WIDTH)
    torch.testing.assert_close(narrow(x), theirs(x, x, x)[0], atol=1e-5, rtol=1e-5)


def test_the_scale_depends_on_the_head_width() -> None:
    attention = Attention(32, heads=2, head_width=8, bias=False)
    x = torch.randn(1, 4, 32)
    heads = []
    for head in range(2):
        rows = slice(8 * head, 8 * head + 8)
        q, k, v = (x[0] @ layer.weight[rows].T for layer in (attention.query, attention.key, attention.value))
        heads.append(torch.softmax(q @ k.T / 8**0.5, dim=-1) @ v)
    expected = torch.cat(heads, dim=-1) @ attention.output.weight.T
    torch.testing.assert_close(attention(x)[0], expected, atol=1e-5, rtol=1e-5)


def test_heads_without_positions_ignore_word_order() -> None:
    """A slide claims that several heads tell "Giants Beat Dodgers" from "Dodgers Beat Giants". They do not."""
    torch.manual_seed(0)
    attention = Attention(16, heads=4).double()
    words = torch.randn(1, 3, 16, dtype=torch.float64)
    swapped = words[:, [2, 1, 0]]
    beat = attention(words)[:, 1] - attention(swapped)[:, 1]
    assert beat.abs().max() < 1e-12
    causal = Mask(causal=True)
    beat = attention(words, mask=causal)[:, 1] - attention(swapped, mask=causal)[:, 1]
    assert beat.abs().max() > 1e-3


def test_dropout_is_off_in_evaluation() -> None:
    torch.manual_seed(0)
    attention = Attention(WIDTH, HEADS, dropout=0.5)
    x = torch.randn(B, T, WIDTH)

    def differs() -> bool:
        one: Tensor = attention(x)
        return not torch.equal(one, attention(x))

    assert differs()
    attention.eval()
    assert not differs()


def test_width_must_be_divisible() -> None:
    with pytest.raises(ValueError, match="10 is not divisible by 4"):
        Attention(10, heads=4)
    assert Attention(10, heads=4, head_width=3)(torch.randn(1, 2, 10)).shape == (1, 2, 10)
