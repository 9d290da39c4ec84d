"""GPT and GPT-2: sizes, masks, cache, initial values. Parity is in tests/contracts/interop/test_gpt.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyheads.core.recording import record
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.presets import preset
from manyheads.training.loss import smoothed_cross_entropy

V, T = 23, 9
LENGTHS = torch.tensor([9, 4, 6])


def small(**settings: Any) -> GPT:
    """A random model without dropout, every parameter moved away from its initial value."""
    sizes: dict[str, Any] = {"vocab": V, "width": 15, "layers": 3, "heads": 3, "feed_forward": 34, "max_positions": 14}
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**sizes, **rates, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def texts() -> Tensor:
    return torch.randint(V, (3, T), generator=torch.Generator().manual_seed(1))


def test_without_bias_there_are_no_bias_parameters() -> None:
    model = small(bias=False)
    assert not [name for name, _ in model.named_parameters() if "bias" in name]
    assert model(texts()).isfinite().all()


def test_initial_values() -> None:
    torch.manual_seed(0)
    for norm in ("pre", "post"):
        model = GPT(GPTConfig(vocab=500, width=128, layers=8, heads=4, norm=norm))
        writing = 0.02 / 4 if norm == "pre" else 0.02
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any(), name
            elif "norm" in name:
                assert (parameter == 1).all(), name
            else:
                wanted = writing if name.endswith(("output.weight", "contract.weight")) else 0.02
                assert parameter.std().item() == pytest.approx(wanted, rel=0.05), name


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_attention_is_causal(norm: str) -> None:
    model, tokens = small(norm=norm).eval(), texts()
    plain = model(tokens)
    for t in range(1, T):
        changed = tokens.clone()
        changed[:, t:] = (changed[:, t:] + 5) % V
        logits = model(changed)
        assert torch.equal(logits[:, :t], plain[:, :t])
        assert not torch.allclose(logits[:, t], plain[:, t])


KINDS: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "post"},
    {"window": 3},
    {"feed_forward": "none"},
]


@pytest.mark.parametrize("settings", KINDS)
def test_batch_equals_single_despite_padding(settings: dict[str, Any]) -> None:
    model, tokens = small(**settings).double().eval(), texts()
    behind = torch.arange(T) >= LENGTHS[:, None]
    together = model(tokens, LENGTHS)
    other = model(tokens.masked_fill(behind, 3), LENGTHS)
    assert torch.equal(together[~behind], other[~behind])
    torch.testing.assert_close(together[~behind], model(tokens)[~behind])
    for b, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(model(tokens[b : b + 1, :length]), together[b : b + 1, :length])


@pytest.mark.parametrize("settings", KINDS)
def test_packed_documents_do_not_see_each_other(settings: dict[str, Any]) -> None:
    model, tokens = small(**settings).eval(), texts()
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2]]).expand(3, T)
    logits = model(tokens, segments=segments)
    changed = tokens.clone()
    changed[:, :4] = (changed[:, :4] + 1) % V
    assert torch.equal(model(changed, segments=segments)[:, 4:], logits[:, 4:])
    assert not torch.allclose(model(changed)[:, 4:], model(tokens)[:, 4:])


@pytest.mark.parametrize("settings", KINDS)
def test_cached_equals_uncached(settings: dict[str, Any]) -> None:
    """Texts of unequal length read at once, then token by token, with rows that leave."""
    model, tokens = small(**settings).double().eval(), texts()
    with torch.inference_mode():
        cache = model.start(3, capacity=12)
        logits = model.step(tokens, cache)
        cache.advance(LENGTHS - T)
        rows = [tokens[b, :length].tolist() for b, length in enumerate(LENGTHS.tolist())]
        last = logits[torch.arange(3), LENGTHS - 1]
        for round in range(3):
            for row, found in zip(rows, last, strict=True):
                torch.testing.assert_close(found, model(torch.tensor([row]))[0, -1], atol=1e-10, rtol=1e-10)
            if round == 1:
                cache.select(torch.tensor([2, 0]))
                rows, last = [rows[2], rows[0]], last[[2, 0]]
            following = last.argmax(-1)
            for row, token in zip(rows, following.tolist(), strict=True):
                row.append(token)
            last = model.step(following[:, None], cache)[:, -1]


def test_every_second_block_attends_to_a_window() -> None:
    """Recorded maps: blocks 0 and 2 attend to all earlier tokens, block 1 to the last three, cached or not."""
    model, tokens = small(window=3).eval(), texts()
    with record(model, ["decoder.blocks.*.attention"]) as maps:
        model(tokens)
    with record(model, ["decoder.blocks.*.attention"]) as cached:
        cache = model.start(3, capacity=T)
        model.step(tokens[:, :5], cache)
        model.step(tokens[:, 5:], cache)
    dense = torch.ones(T, T).tril().bool()
    for layer, allowed in enumerate((dense, dense.triu(-2), dense)):
        (found,), (begin, rest) = (kept[f"decoder.blocks.{layer}.attention"] for kept in (maps, cached))
        assert torch.equal(found > 0, allowed.expand_as(found))
        torch.testing.assert_close(begin, found[:, :, :5, :5])
        torch.testing.assert_close(rest, found[:, :, 5:])
    wide, plain = small(window=T).eval(), small().eval()
    torch.testing.assert_close(wide(tokens), plain(tokens))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_parameter_is_trained(norm: str) -> None:
    model = small(norm=norm, max_positions=T)
    tokens = torch.arange(3 * T).view(3, T) % V
    loss = nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if name.endswith(".key.bias"):  # moves all scores of a query alike
            assert parameter.grad.abs().max() < 1e-6, name
        else:
            assert parameter.grad.abs().max() > 1e-6, name


def test_dropout_acts_only_in_training() -> None:
    for name in ("dropout", "attention_dropout", "embedding_dropout"):
        model, tokens = small(**{name: 0.5}), texts()
        assert not torch.equal(model(tokens), model(tokens)), name
        model.eval()
        assert torch.equal(model(tokens), model(tokens)), name


def test_one_batch_is_overfitted_quickly() -> None:
    torch.manual_seed(0)
    model = GPT(preset("gpt2/nano", vocab=V, width=32, layers=2, heads=2))
    tokens = texts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        hidden = model.hidden(tokens[:, :-1]).flatten(0, 1)
        loss = smoothed_cross_entropy(
            hidden, model.output_weight, None, tokens[:, 1:].flatten(), smoothing=0.0, pad=None
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() / tokens[:, 1:].numel() < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 16}, r"heads is 3: expected an integer that divides width \(16\)"),
        ({"end": V}, r"end is 23: expected an integer from 0 to below vocab \(23\)"),
        ({"window": 0}, "window is 0: expected an integer of at least 1|window is 0: expected .*1"),
        ({"norm": "middle"}, "norm is 'middle': expected one of pre, post"),
        ({"activation": "swish"}, "'swish'.*gelu_tanh"),
    ],
)
def test_bad_settings_are_reported(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings)


def test_unknown_names_and_overlong_texts_are_reported() -> None:
    with pytest.raises(ValueError, match="'gpt3': did you mean gpt"):
        preset("gpt3")
    with pytest.raises(ValueError, match="unknown settings depth: expected some of .*layers"):
        preset("gpt2/nano", depth=3)
    with pytest.raises(ValueError, match="15 tokens, but the model takes at most 14"):
        small()(torch.zeros(1, 15, dtype=torch.long))
