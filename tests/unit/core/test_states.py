"""Recording and editing of feed-forward layers and the residual stream, compared with PyTorch's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyheads.core.block import Block, Stack
from manyheads.core.editing import edit
from manyheads.core.layers import FeedForward
from manyheads.core.recording import record, tapped
from manyheads.core.tap import Place
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.conv_attention import ConvAttention, ConvAttentionConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.models.universal import Universal, UniversalConfig
from manyheads.models.vit import ViT, ViTConfig

V, D, T = 19, 16, 6
WORDS: dict[str, Any] = {"source_vocab": V, "target_vocab": V, "pad": V - 1, "end": 0, "start": V - 1, "width": D}
SIDES: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "encoder_heads": 2, "decoder_heads": 2,
                         "encoder_feed_forward": 8, "decoder_feed_forward": 8}  # fmt: skip
SMALL: dict[str, Any] = {"width": D, "layers": 2, "heads": 2, "feed_forward": 8}
IMAGE: dict[str, Any] = {"labels": ("a", "b"), "image_size": 8, **SMALL}
BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "translator": lambda: Transformer(TransformerConfig(**WORDS, **SIDES)),
    "translator, pre": lambda: Transformer(TransformerConfig(**WORDS, **SIDES, norm="pre", final_norm=True)),
    "gpt": lambda: GPT(GPTConfig(vocab=V, **SMALL)),
    "bert": lambda: Bert(BertConfig(vocab=V, head="masked_lm", **SMALL)),
    "vit": lambda: ViT(ViTConfig(patch=4, layer_scale=0.5, **IMAGE)),
    "universal": lambda: Universal(UniversalConfig(**WORDS, heads=2, feed_forward=8, steps=3)),
    "universal, separable": lambda: Universal(
        UniversalConfig(**WORDS, heads=2, feed_forward=8, steps=3, transition="separable")
    ),
    "conv-attention": lambda: ConvAttention(ConvAttentionConfig(**IMAGE)),
}


def built(name: str) -> Any:
    torch.manual_seed(0)
    model = BUILDERS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases, too, are not what they begin as
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs(model: nn.Module, seed: int = 1) -> tuple[Tensor | None, ...]:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, ViT | ConvAttention):
        return (torch.randn(2, 3, 8, 8, generator=generator),)
    tokens = torch.randint(1, V - 1, (2, 2 * T), generator=generator)
    return (tokens[:, :T], None, tokens[:, T:]) if isinstance(model, Transformer | Universal) else (tokens[:, :T],)


def places(model: nn.Module, place: Place) -> list[str]:
    """By the classes of the modules, as a reader would look for them."""
    kinds = FeedForward if place == "feed_forward" else (Block, Stack)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


@contextmanager
def hooked(model: nn.Module, name: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """The same change by a hook: on what a module gives, or on what a stack is given."""
    module = model.get_submodule(name)

    def before(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (change(given[0]), *given[1:])

    def behind(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return change(output)

    is_stack = isinstance(module, Stack)
    handle = module.register_forward_pre_hook(before) if is_stack else module.register_forward_hook(behind)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def logits(model: Callable[..., Tensor], given: tuple[Tensor | None, ...]) -> Tensor:
    return model(*given)


CASES = [(name, "feed_forward") for name in BUILDERS]
CASES += [(name, "residual") for name in BUILDERS if name != "conv-attention"]  # whose layers are no blocks


@pytest.mark.parametrize(("name", "place"), CASES)
def test_every_location_is_reported(name: str, place: Place) -> None:
    model = built(name)
    assert list(tapped(model, place)) == places(model, place)


@pytest.mark.parametrize(("name", "place"), CASES)
def test_recorded_maps_equal_hooks(name: str, place: Place) -> None:
    model, seen = built(name), dict[str, list[Tensor]]()
    plain = logits(model, inputs(model))
    with ExitStack() as undo:
        for each in places(model, place):

            def keep(states: Tensor, each: str = each) -> Tensor:
                seen.setdefault(each, []).append(states)
                return states

            undo.enter_context(hooked(model, each, keep))
        logits(model, inputs(model))
    with record(model, of=place) as found:
        assert torch.equal(logits(model, inputs(model)), plain)
    assert list(found) == places(model, place)
    for each, calls in seen.items():
        assert len(calls) == len(found[each]) == (3 if name.startswith("universal") else 1)
        assert all(torch.equal(one, other) for one, other in zip(calls, found[each], strict=True))
    with record(model, layers=[0], queries=[-1, 0], of=place) as some:
        logits(model, inputs(model))
    first = places(model, place)[0]
    assert torch.equal(some[first][0], found[first][0][..., [-1, 0], :])


@pytest.mark.parametrize("how", ["zero", "mean", "replace"])
@pytest.mark.parametrize(("name", "place"), CASES)
def test_edits_equal_hooks(name: str, place: Place, how: str) -> None:
    model = built(name)
    given = torch.randn(D)
    plain = logits(model, inputs(model))

    def by_hand(states: Tensor) -> Tensor:
        states = states.clone()
        if how == "zero":
            states[:] = 0.0
        elif how == "mean":
            states[:] = states.mean(-2, keepdim=True)
        else:
            states[..., [0, -1], :] = given
        return states

    for each in places(model, place):
        with hooked(model, each, by_hand):
            expected = logits(model, inputs(model))
        with edit(model) as change:
            do = change.feed_forward if place == "feed_forward" else change.residual
            if how == "replace":
                do(each, given, positions=[0, -1])
            else:
                do(each, torch.zeros_like if how == "zero" else lambda part: part.mean(-2, keepdim=True))
            edited = logits(model, inputs(model))
        assert torch.equal(edited, expected)
        assert not torch.allclose(edited, plain)
    assert torch.equal(logits(model, inputs(model)), plain)


@pytest.mark.parametrize("name", ["translator", "translator, pre", "gpt", "bert", "vit"])
def test_patching_the_stream_changes_later_layers(name: str) -> None:
    """Patching all positions of a layer gives the output of the other run.

    Patching one leaves earlier positions unchanged.
    """
    model = built(name)
    ours, theirs = inputs(model, 1), inputs(model, 2)
    if len(ours) == 3:  # of the decoder, for the same source
        theirs = (ours[0], None, theirs[2])
    stack = "decoder" if isinstance(model, Transformer | GPT) else "encoder"
    with record(model, of="residual") as states:
        expected = logits(model, theirs)
    plain = logits(model, ours)
    for each in (stack, f"{stack}.blocks.0", f"{stack}.blocks.1"):
        with edit(model) as change:
            change.residual(each, states[each][0])
            torch.testing.assert_close(logits(model, ours), expected)
    with edit(model) as change:
        change.residual(f"{stack}.blocks.0", states[f"{stack}.blocks.0"][0][:, [2]], positions=[2])
        patched = logits(model, ours)
    assert not torch.allclose(patched, plain)
    if stack == "decoder":  # no position sees one behind it
        torch.testing.assert_close(patched[:, :2], plain[:, :2])


def test_cached_steps_can_be_edited_individually() -> None:
    model = built("translator")
    source, _, target = inputs(model)
    assert source is not None
    assert target is not None
    with edit(model) as change:
        change.feed_forward("decoder.blocks.1.feed_forward", torch.zeros_like)
        change.residual("decoder.blocks.0", lambda part: 2 * part, positions=[0])  # of each call: every position
        with torch.no_grad():
            cache = model.start(source, None, T)
            steps = torch.cat([model.step(target[:, [at]], cache) for at in range(T)], 1)
    with edit(model) as change:
        change.feed_forward("decoder.blocks.1.feed_forward", torch.tensor(0.0))
        change.residual("decoder.blocks.0", lambda part: 2 * part)
        torch.testing.assert_close(logits(model, (source, None, target)), steps, atol=1e-5, rtol=1e-4)


def test_gradients_pass_and_stop() -> None:
    model = built("gpt")
    with edit(model) as change:
        change.feed_forward("decoder.blocks.0.feed_forward", torch.zeros_like)
        model(*inputs(model)).square().sum().backward()
    assert model.decoder.blocks[0].feed_forward.expand.weight.grad is None
    assert model.decoder.blocks[1].feed_forward.expand.weight.grad.any()


def test_settings_that_cannot_change_are_reported() -> None:
    model, new = built("gpt"), torch.zeros(())
    for pattern, do in (
        (r"no feed-forward layer matches 'x': expected one of decoder", lambda c: c.feed_forward("x", new)),
        (r"no residual layer matches '\*.cross': expected one of decoder", lambda c: c.residual("*.cross", new)),
        (r"layer 3 does not exist: expected 0 to 2", lambda c: c.residual(3, new)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=pattern), edit(model) as change:
            do(change)
    with edit(model) as change:
        change.residual(0, torch.zeros_like, positions=[T])
        with pytest.raises(ValueError, match=f"position {T} does not exist: expected 0 to {T - 1}"):
            logits(model, inputs(model))
    with edit(model) as change:
        change.residual(0, torch.zeros(3, D))
        with pytest.raises(ValueError, match=r"found \(3, 16\), expected a shape that broadcasts to \(2, 6, 16\)"):
            logits(model, inputs(model))
    with (
        pytest.raises(ValueError, match="but only queries, keys, values, scores, attention, head_outputs have heads"),
        record(model, heads=[0], of="residual"),
    ):
        pass
    with pytest.raises(ValueError, match="position 9 does not exist"), record(model, queries=[9], of="residual"):
        logits(model, inputs(model))
    with pytest.raises(ValueError, match="Linear has no residual"), record(nn.Linear(2, 2), of="residual"):
        pass
