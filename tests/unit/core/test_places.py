"""Recording and editing of queries, keys, values, scores, outputs and logits, with and without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.editing import edit
from manyheads.core.masks import Mask
from manyheads.core.recording import Maps, record, tapped
from manyheads.core.tap import Place
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.rnn_attention import RNNAttention
from manyheads.models.vit import ViT, ViTConfig
from tests.unit.models.test_rnn_attention import model as recurrent

B, T, D, H = 2, 5, 16, 4


@pytest.fixture
def attention() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"only": Attention(D, H)}).double()


@pytest.fixture
def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab=11, width=D, layers=2, heads=H, max_positions=T)).double().eval()


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (B, T), generator=torch.Generator().manual_seed(seed))


def all_places(model: nn.Module, run: Callable[[], object], *, gradients: bool = False) -> dict[Place, Maps]:
    """Record every place that the model has, one run for each."""
    found: dict[Place, Maps] = {}
    for place in get_args(Place):
        if tapped(model, place):
            with record(model, of=place, gradients=gradients) as found[place]:
                run()
    return found


@pytest.mark.parametrize("explicit", [True, False])
def test_places_are_the_steps_of_the_formula(attention: nn.ModuleDict, explicit: bool) -> None:
    """The recorded tensors are those of softmax(Q K^T / sqrt(d)) V W, computed here by hand."""
    layer = attention["only"]
    assert isinstance(layer, Attention)
    layer.explicit = explicit
    x = torch.randn(B, T, D, dtype=torch.float64)
    found = all_places(attention, lambda: layer(x, mask=Mask(causal=True)))
    query, key, value = (
        projection(x).view(B, T, H, -1).transpose(1, 2) for projection in (layer.query, layer.key, layer.value)
    )
    scores = query @ key.transpose(-2, -1) / math.sqrt(D // H)
    weights = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
    mixed = weights @ value
    expected = {
        "queries": query, "keys": key, "values": value, "scores": scores, "attention": weights, "head_outputs": mixed,
        "attention_output": layer.output(mixed.transpose(1, 2).flatten(2)),
    }  # fmt: skip
    assert set(found) == set(expected)
    for place, maps in found.items():
        torch.testing.assert_close(maps["only"][0], expected[place])
        assert not maps["only"][0].requires_grad


def test_heads_and_positions_are_selected(attention: nn.ModuleDict) -> None:
    x = torch.randn(B, T, D, dtype=torch.float64)
    for place, maps in all_places(attention, lambda: attention["only"](x)).items():
        heads = None if place == "attention_output" else [2, 0]
        with record(attention, heads=heads, queries=[-1, 1], of=place) as some:
            attention["only"](x)
        expected = maps["only"][0] if heads is None else maps["only"][0][:, heads]
        torch.testing.assert_close(some["only"][0], expected[..., [-1, 1], :])


@pytest.mark.parametrize("explicit", [True, False])
def test_replacing_a_place_by_itself_changes_nothing(gpt: GPT, explicit: bool) -> None:
    for module in gpt.modules():
        if isinstance(module, Attention):
            module.explicit = explicit
    plain, other = gpt(tokens()), gpt(tokens(1))
    found = all_places(gpt, lambda: gpt(tokens()))
    assert set(found) == set(get_args(Place))
    for place, maps in found.items():
        with edit(gpt) as change:
            for name, (states,) in maps.items():
                change.replace(place, name, states)
            torch.testing.assert_close(gpt(tokens()), plain)
            if place in ("residual", "logits"):  # those of the other run decide its output
                torch.testing.assert_close(gpt(tokens(1)), plain)
            else:
                assert not torch.allclose(gpt(tokens(1)), other)


@pytest.mark.parametrize("place", ["queries", "keys", "values", "scores", "attention", "head_outputs"])
def test_an_edit_changes_only_its_heads_and_positions(gpt: GPT, place: Place) -> None:
    with record(gpt, 0, of=place) as before:
        gpt(tokens())
    with edit(gpt) as change, record(gpt, 0, of=place) as after:
        change.replace(place, 0, torch.zeros_like, heads=[1, -1], positions=[2])
        gpt(tokens())
    (expected,), (found,) = before["decoder.blocks.0.attention"], after["decoder.blocks.0.attention"]
    expected[:, [1, 3], 2] = 0
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_equal_finite_differences(gpt: GPT, frozen: bool) -> None:
    """`grad` of every place predicts the change of the output that a small edit of this place makes."""
    gpt.requires_grad_(not frozen)

    def output() -> Tensor:
        return gpt(tokens())[0, -1, 3]

    for place in get_args(Place):
        with record(gpt, of=place, gradients=True) as found:
            plain = output()
            plain.backward()
        name, (states,) = next(iter(found.items()))
        assert states.grad is not None
        step = torch.randn_like(states) * 1e-6
        with edit(gpt) as change, torch.no_grad():
            change.replace(place, name, partial(torch.add, step))
            moved = output()
        torch.testing.assert_close(moved - plain, (states.grad * step).sum(), rtol=1e-3, atol=1e-12)


def test_gradients_do_not_change_results(gpt: GPT) -> None:
    plain = gpt(tokens())
    for place in get_args(Place):
        with record(gpt, of=place, gradients=True):
            torch.testing.assert_close(gpt(tokens()), plain)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_without_a_graph_are_refused(gpt: GPT, mode: Callable[[], torch.no_grad]) -> None:
    with pytest.raises(ValueError, match="gradients cannot be recorded here"), mode(), record(gpt, gradients=True):
        gpt(tokens())


def test_gradients_of_selected_heads_are_refused(gpt: GPT) -> None:
    with pytest.raises(ValueError, match="leave heads and queries out"), record(gpt, heads=[0], gradients=True):
        pass


def test_unknown_places_list_the_valid_ones(gpt: GPT) -> None:
    unknown: Place = "query"  # type: ignore[assignment]
    message = "of is 'query': expected one of queries, keys, values, scores, attention, head_outputs, attention_output"
    with pytest.raises(ValueError, match=message), record(gpt, of=unknown):
        pass
    with pytest.raises(ValueError, match=message), edit(gpt) as change:
        change.replace(unknown, 0, torch.zeros_like)


def test_logits_of_words_and_labels() -> None:
    torch.manual_seed(0)
    sizes = {"vocab": 11, "width": D, "layers": 1, "heads": H, "max_positions": T}
    words = Bert(BertConfig(**sizes, feed_forward=8, head="masked_lm")).eval()  # type: ignore[arg-type]
    labels = Bert(BertConfig(**sizes, feed_forward=8, head="sequence", labels=("a", "b"))).eval()  # type: ignore[arg-type]
    vit = ViT(ViTConfig(patch=4, image_size=8, channels=1, width=D, layers=1, heads=H, labels=("a", "b"))).eval()
    for model, given in ((words, tokens()), (labels, tokens()), (vit, torch.randn(B, 1, 8, 8))):
        with record(model, of="logits") as found:
            expected = model(given)
        (logits,) = [call for calls in found.values() for call in calls]
        assert torch.equal(logits, expected)
    message = "position 0 does not exist: there is none"
    with pytest.raises(ValueError, match=message), record(labels, of="logits", queries=[0]):
        labels(tokens())


def test_a_loop_over_positions_is_one_call() -> None:
    """A recurrent decoder attends once per word; queries are joined, keys and values are those of the source."""
    model: RNNAttention = recurrent("two layers")
    source, target = torch.randint(1, 12, (B, 4)), torch.randint(1, 12, (B, T))
    found = all_places(model, lambda: model(source, None, target))
    ((weights,),) = found["attention"].values()
    lengths: dict[Place, int] = {"queries": T, "scores": T, "head_outputs": T, "keys": 4, "values": 4}
    for place, length in lengths.items():
        calls = [call for calls in found[place].values() for call in calls]
        assert [call.shape[-2] for call in calls] in ([length], [])
    torch.testing.assert_close(found["scores"].popitem()[1][0].softmax(-1), weights)


def test_replacements_become_tensors_of_the_replaced_type(gpt: GPT) -> None:
    with edit(gpt) as change:
        change.residual("decoder", lambda state: torch.ones_like(state, dtype=torch.long))
        ones = gpt(tokens())
    with edit(gpt) as change:
        change.residual("decoder", torch.ones_like)
        torch.testing.assert_close(gpt(tokens()), ones)


def test_edits_without_a_replacement_are_refused(gpt: GPT) -> None:
    function: Any = lambda state: None  # noqa: E731
    heads: Any = 0
    with edit(gpt) as change:
        change.residual("decoder", function)
        with pytest.raises(ValueError, match="the replacement is None: expected a function that returns a tensor"):
            gpt(tokens())
        with pytest.raises(ValueError, match="heads is 0: expected a list or None"):
            change.zero([0], heads)
