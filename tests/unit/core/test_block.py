"""Blocks and stacks, compared with torch.nn's Transformer layers with the same weights."""

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.editing import edit
from manyheads.core.layers import FeedForward
from manyheads.core.masks import Mask
from manyheads.core.recording import record
from tests.support.porting import port_block, port_stack, randomize

B, T, TM, WIDTH, HEADS, HIDDEN = 3, 5, 6, 12, 3, 20
LENGTHS, MEMORY_LENGTHS = torch.tensor([5, 2, 3]), torch.tensor([4, 6, 1])
CAUSAL = torch.ones(T, T).triu(1).bool()
FORMS = [(norm, activation) for norm in ("post", "pre") for activation in ("relu", "gelu")]


def block(norm: str, activation: str, cross: bool) -> Block:
    return Block(
        Attention(WIDTH, HEADS),
        FeedForward(WIDTH, HIDDEN, activation),
        Attention(WIDTH, HEADS) if cross else None,
        norm=norm,  # type: ignore[arg-type]
    )


def settings(norm: str, activation: str) -> dict:
    return {
        "d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.0, "activation": activation,
        "batch_first": True, "norm_first": norm == "pre",
    }  # fmt: skip


def padding(lengths: Tensor, longest: int) -> Tensor:
    return torch.arange(longest) >= lengths[:, None]


def same(ours: Tensor, theirs: Tensor, real: Tensor, inputs: Iterable[Tensor]) -> None:
    """Outputs at real positions, and the gradients of the inputs, agree."""
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    inputs = list(inputs)
    weight = torch.randn_like(ours)[real]
    got = torch.autograd.grad((ours[real] * weight).sum(), inputs, retain_graph=True)
    expected = torch.autograd.grad((theirs[real] * weight).sum(), inputs, retain_graph=True)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("norm", "activation"), FORMS)
def test_encoder_layer_equals_pytorch(norm: str, activation: str, training: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(**settings(norm, activation))
    randomize(theirs)
    ours = block(norm, activation, cross=False)
    port_block(theirs, ours)
    theirs.train(training)
    ours.train(training)
    x = torch.randn(B, T, WIDTH, requires_grad=True)
    outside = padding(LENGTHS, T)
    expected = theirs(x, src_key_padding_mask=outside)
    same(ours(x, mask=Mask(key_lengths=LENGTHS)), expected, ~outside, [x])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("norm", "activation"), FORMS)
def test_decoder_layer_equals_pytorch(norm: str, activation: str, training: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerDecoderLayer(**settings(norm, activation))
    randomize(theirs)
    ours = block(norm, activation, cross=True)
    port_block(theirs, ours)
    theirs.train(training)
    ours.train(training)
    x, memory = torch.randn(B, T, WIDTH, requires_grad=True), torch.randn(B, TM, WIDTH, requires_grad=True)
    outside, beyond = padding(LENGTHS, T), padding(MEMORY_LENGTHS, TM)
    expected = theirs(x, memory, tgt_mask=CAUSAL, tgt_key_padding_mask=outside, memory_key_padding_mask=beyond)
    out = ours(
        x,
        mask=Mask(causal=True, key_lengths=LENGTHS),
        memory=memory,
        memory_mask=Mask(key_lengths=MEMORY_LENGTHS),
    )
    same(out, expected, ~outside, [x, memory])


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("final", [False, True])
def test_encoder_stack_equals_pytorch(norm: str, final: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(**settings(norm, "relu"))
    theirs = nn.TransformerEncoder(layer, 3, nn.LayerNorm(WIDTH) if final else None, enable_nested_tensor=False)
    for copied in theirs.layers:  # they start as copies of one layer, which would hide a mix-up
        for parameter in copied.parameters():
            nn.init.normal_(parameter, std=0.3)
    ours = Stack([block(norm, "relu", cross=False) for _ in range(3)], nn.LayerNorm(WIDTH) if final else None)
    port_stack(theirs, ours)
    x = torch.randn(B, T, WIDTH, requires_grad=True)
    outside = padding(LENGTHS, T)
    expected = theirs(x, src_key_padding_mask=outside)
    same(ours(x, mask=Mask(key_lengths=LENGTHS)), expected, ~outside, [x])


def test_residual_dropout_acts_on_the_sublayer_output() -> None:
    """With everything dropped a pre-norm block is the identity, while training only."""
    x = torch.randn(B, T, WIDTH)
    whole = Block(Attention(WIDTH, HEADS), FeedForward(WIDTH, HIDDEN), norm="pre", dropout=1.0)
    assert torch.equal(whole(x), x)
    assert not torch.allclose(whole.eval()(x), x)


def test_stochastic_depth_drops_whole_sublayers_per_item() -> None:
    """For half of the items attention adds nothing, for the others twice as much."""
    torch.manual_seed(0)
    silent = FeedForward(WIDTH, HIDDEN)
    nn.init.zeros_(silent.contract.weight)
    nn.init.zeros_(silent.contract.bias)
    whole = Block(Attention(WIDTH, HEADS), silent, norm="pre", drop_path=0.5)
    x = torch.randn(1, T, WIDTH).expand(2000, T, WIDTH)
    out = whole(x)
    left_out = (out == x).flatten(1).all(1)
    assert float(left_out.double().mean()) == pytest.approx(0.5, abs=0.05)
    added = (whole.eval()(x) - x)[~left_out]
    torch.testing.assert_close((out - x)[~left_out], 2 * added, rtol=1e-4, atol=1e-5)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="'post' or 'pre', found 'middle'"):
        block("middle", "relu", cross=False)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_checkpointing_gives_equal_gradients(norm: str) -> None:
    """Bit for bit, dropout included: the second pass draws what the first one drew."""
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        blocks = [block(norm, "gelu", cross=True) for _ in range(2)]
        for each in blocks:
            each.dropout = each.attention.dropout = 0.3
        stack = Stack(blocks, nn.LayerNorm(WIDTH))
        stack.checkpointing = checkpointing
        x = torch.randn(B, T, WIDTH, requires_grad=True)
        memory = torch.randn(B, TM, WIDTH, requires_grad=True)
        out = stack(x, mask=Mask(causal=True), memory=memory, memory_mask=Mask(key_lengths=MEMORY_LENGTHS))
        out.square().sum().backward()
        results.append([out, x.grad, memory.grad, *(p.grad for p in stack.parameters()), torch.rand(1)])
    for one, other in zip(*results, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_a_checkpointed_stack_is_recorded_and_edited_once() -> None:
    """The backward pass recomputes each block.

    This must not be recorded twice, and must repeat an edit that has ended.
    """
    stack = Stack([block("pre", "gelu", cross=False) for _ in range(2)])
    x = torch.randn(B, T, WIDTH)
    gradients = []
    for checkpointing in (False, True):
        stack.zero_grad()
        stack.checkpointing = checkpointing
        with record(stack) as maps:
            stack(x).sum().backward()
        assert [len(calls) for calls in maps.values()] == [1, 1]
        with edit(stack) as change:
            change.zero("blocks.1.attention", heads=[0])
            out = stack(x)
        out.sum().backward()
        gradients.append([p.grad for p in stack.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_states_and_forward_add_the_same_bias() -> None:
    torch.manual_seed(0)
    stack = Stack([Block(Attention(8, 2), FeedForward(8, 16, "relu")) for _ in range(2)]).eval()
    x, bias = torch.randn(1, 5, 8), 3 * torch.randn(2, 5, 5)
    assert torch.equal(stack.states(x, bias=bias)[-1], stack(x, bias=bias))
    assert not torch.allclose(stack.states(x)[-1], stack(x, bias=bias))
