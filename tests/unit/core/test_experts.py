"""Mixture of experts: equations, capacity and the load-balancing loss, compared with transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import SwitchTransformersConfig
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersSparseMLP,
    load_balancing_loss_func,
)

from manyheads.analysis import costs
from manyheads.core.editing import edit
from manyheads.core.experts import Experts, balance_loss, balance_losses
from manyheads.core.recording import record
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.presets import build, preset
from manyheads.models.transformer import TransformerConfig


def layer(experts: int = 4, top_k: int = 1, **settings: Any) -> Experts:
    torch.manual_seed(1)
    return Experts(8, 16, experts=experts, top_k=top_k, **settings)


def outputs(model: Experts, x: Tensor) -> Tensor:
    """Return the output of every expert for every token, (E, B, T, D)."""
    pairs = zip(model.expand, model.contract, strict=True)
    return torch.stack([contract(model.activation(expand(x))) for expand, contract in pairs])


@pytest.mark.parametrize("limit", [64, 2])
def test_outputs_and_loss_equal_those_of_switch_transformers(limit: int) -> None:
    config: Any = SwitchTransformersConfig(
        d_model=8,
        d_ff=16,
        num_experts=4,
        expert_capacity=limit,
        router_bias=False,
        dropout_rate=0.0,
        router_jitter_noise=0.0,
    )
    reference: Any = SwitchTransformersSparseMLP(config)
    model: Any = layer(capacity=limit * 4 / 12)
    with torch.no_grad():
        reference.router.classifier.weight.copy_(model.router.weight)
        for e, expert in enumerate(reference.experts.values()):
            for ours, theirs in ((model.expand[e], expert.wi), (model.contract[e], expert.wo)):
                ours.bias.zero_()
                theirs.weight.copy_(ours.weight)
    x = torch.randn(1, 12, 8)
    with balance_losses(model) as losses:
        output = model(x)
    torch.testing.assert_close(output, reference(x), atol=1e-5, rtol=0)
    probabilities = model.router(x)
    expected = load_balancing_loss_func(probabilities, probabilities.argmax(-1))
    torch.testing.assert_close(losses[0], 0.01 * expected, atol=1e-5, rtol=0)


def test_with_all_experts_the_output_is_their_weighted_sum() -> None:
    model, x = layer(3, 3), torch.randn(2, 5, 8)
    expected = torch.einsum("ebtd,bte->btd", outputs(model, x), model.router(x))
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=0)


def test_first_choices_precede_second_choices_when_experts_are_full() -> None:
    model, x = layer(2, 2, capacity=0.5), torch.randn(1, 6, 8)
    chosen = model.router(x)[0].argsort(-1, descending=True).T.flatten().tolist()  # first choices, then second ones
    places = [chosen[:n].count(expert) for n, expert in enumerate(chosen)]
    each, gates = outputs(model, x)[:, 0], model.router(x)[0]
    expected = torch.zeros(6, 8)
    for n, (expert, place) in enumerate(zip(chosen, places, strict=True)):
        if place < 3:  # ceil(0.5 * 6 tokens * 2 / 2 experts)
            expected[n % 6] += gates[n % 6, expert] * each[expert, n % 6]
    torch.testing.assert_close(model(x)[0], expected, atol=1e-5, rtol=0)
    both = torch.einsum("etd,te->td", each, gates)
    torch.testing.assert_close(model.eval()(x)[0], both, atol=1e-5, rtol=0)  # no limit in eval mode


def test_padding_takes_no_capacity_and_does_not_enter_the_loss() -> None:
    model, x = layer(capacity=1.0, top_k=2), torch.randn(2, 6, 8)
    with balance_losses(model) as losses:
        padded = model(x, lengths=torch.tensor([6, 2]))
        real = model(torch.cat([x[0], x[1, :2]])[None])[0]
    torch.testing.assert_close(torch.cat([padded[0], padded[1, :2]]), real)
    torch.testing.assert_close(losses[0], losses[1])
    assert not padded[1, 2:].any()


def test_the_loss_is_one_if_all_experts_are_used_equally() -> None:
    uniform = torch.full((8, 4), 0.25)
    assert balance_loss(uniform, torch.arange(16).view(2, 8) % 4).item() == pytest.approx(1)


@pytest.mark.parametrize("top_k", [1, 3])
def test_every_parameter_has_a_gradient(top_k: int) -> None:
    model = layer(top_k=top_k).double()
    x = torch.randn(1, 2, 8, dtype=torch.float64, requires_grad=True)  # too few tokens for all experts
    assert torch.autograd.gradcheck(model, (x,))
    model(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.router.weight.grad is not None
    assert model.router.weight.grad.any()


def test_no_token_gives_no_output() -> None:
    assert layer()(torch.zeros(0, 3, 8)).shape == (0, 3, 8)


def gpt(**settings: Any) -> GPT:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab": 20, "width": 16, "layers": 2, "heads": 2, "max_positions": 12}
    return GPT(GPTConfig(**sizes, feed_forward="experts", experts=4, top_k=2, expert_size=8, **settings))


def test_cached_steps_equal_the_whole_text() -> None:
    model, tokens = gpt(capacity=0.1).eval(), torch.randint(20, (2, 6))
    cache = model.start(2, 6)
    steps = torch.cat([model.step(part, cache) for part in tokens.split([3, 1, 2], 1)], 1)
    torch.testing.assert_close(steps, model(tokens), atol=1e-5, rtol=0)


def test_outputs_of_the_layer_can_be_recorded_and_edited() -> None:
    model, tokens = gpt().eval(), torch.randint(20, (2, 6))
    with record(model, of="feed_forward") as states:
        model(tokens)
    assert {name: calls[0].shape for name, calls in states.items()} == {
        f"decoder.blocks.{n}.feed_forward": (2, 6, 16) for n in range(2)
    }
    with edit(model) as change, record(model, of="residual") as edited:
        change.feed_forward([0], lambda states: 0 * states)
        model(tokens)
    assert not torch.equal(edited["decoder.blocks.0"][0], states["decoder.blocks.0.feed_forward"][0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 9}, "top_k is 9: expected at most the number of experts, 8"),
        ({"capacity": 0.0}, "capacity is 0.0: expected a number above 0"),
        ({"feed_forward": "dense", "experts": 4}, "experts is 4: it has an effect only with feed_forward=experts"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, Any], message: str) -> None:
    sizes = {"source_vocab": 9, "target_vocab": 9, "pad": 0, "end": 1, "start": 2}
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**{"feed_forward": "experts", **sizes, **settings})


def test_active_parameters_and_flops_count_the_experts_of_a_token() -> None:
    with torch.device("meta"):
        small = {"encoder_layers": 1, "decoder_layers": 1, "source_vocab": 9, "target_vocab": 9}
        model, dense = (build(preset(f"transformer/{name}", **small)) for name in ("tiny-experts", "tiny"))
    # A router, and the bias of a second output. Two experts together have as many hidden units as the dense network.
    added = 2 * (8 * 128 + 128)
    counts, expected = costs.summary(model, 4)["parameters"], costs.summary(dense, 4)["parameters"]["non_embedding"]
    assert counts["active_non_embedding"] == expected + added
    assert counts["non_embedding"] == expected + added + 2 * 6 * (2 * 128 * 128 + 256)
    assert costs.flops(model, 4)["forward"] - costs.flops(dense, 4)["forward"] == 2 * 4 * 2 * 128 * 8
