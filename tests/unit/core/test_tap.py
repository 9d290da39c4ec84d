"""Recording and editing of attention: recorded values are the computed ones, and recording changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyheads.core import attention as attention_module
from manyheads.core.attention import Attention, attend
from manyheads.core.editing import edit
from manyheads.core.masks import Mask
from manyheads.core.recording import Maps, record, tapped
from manyheads.core.tap import Tap
from manyheads.models.presets import preset
from manyheads.models.transformer import Transformer
from tests.support.porting import port_attention

B, TS, TT, V, HEADS = 3, 6, 5, 19, 4
LENGTHS = torch.tensor([6, 2, 4])
NAMES = ["encoder.blocks.0.attention", "encoder.blocks.1.attention",
         "decoder.blocks.0.attention", "decoder.blocks.0.cross",
         "decoder.blocks.1.attention", "decoder.blocks.1.cross"]  # fmt: skip


def translator(dropout: float = 0.0) -> Transformer:
    torch.manual_seed(0)
    sizes = {
        "width": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_feed_forward": 8,
        "decoder_feed_forward": 8,
    }
    tokens = {"source_vocab": V, "target_vocab": V, "pad": V - 1, "end": 0, "start": V - 1}
    return Transformer(preset("transformer/tiny", **sizes, **tokens, dropout=dropout, attention_dropout=dropout))


def explicit(model: nn.Module, way: bool | None) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            module.explicit = way


@pytest.fixture
def model() -> Transformer:
    return translator().eval()


def sources_and_targets() -> tuple[Tensor, Tensor, Tensor]:
    """Return random source ids (B, TS), their lengths, and random target ids (B, TT)."""
    generator = torch.Generator().manual_seed(1)
    draw = torch.randint(1, V - 1, (B, TS + TT), generator=generator)
    return draw[:, :TS], LENGTHS, draw[:, TS:]


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor, Tensor]:
    return sources_and_targets()


def test_layers_are_named_in_order(model: Transformer) -> None:
    assert list(tapped(model)) == NAMES


@pytest.mark.parametrize("training", [False, True])
def test_maps_are_the_applied_weights(training: bool, batch: tuple[Tensor, ...]) -> None:
    """Maps of the fused and the explicit computation agree, are normalized, and masked.

    Dropout is applied afterwards.
    """
    maps: dict[bool, Maps] = {}
    for way in (True, False):
        model = translator(dropout=0.4 if training else 0.0).train(training)
        explicit(model, way)
        torch.manual_seed(5)
        with record(model) as maps[way]:
            model(*batch)
    for name in NAMES:
        ((one,), (other,)) = maps[True][name], maps[False][name]
        assert not one.requires_grad
        queries = TS if "encoder" in name else TT
        keys = TS if "encoder" in name or "cross" in name else TT
        assert one.shape == other.shape == (B, HEADS, queries, keys)
        torch.testing.assert_close(one.sum(-1), torch.ones(B, HEADS, queries))
        if keys == TS:
            assert (one[1, :, :, 2:] == 0).all()
            assert (one[1, :, :, :2] > 0).all()
        else:
            assert (one.triu(1) == 0).all()
        if not training or name == NAMES[0]:  # behind the first dropout the two ways draw differently
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_maps_equal_pytorch() -> None:
    torch.manual_seed(0)
    theirs, ours = nn.MultiheadAttention(8, 2, batch_first=True), Attention(8, 2)
    port_attention(theirs, ours)
    x = torch.randn(B, TS, 8)
    padding = torch.arange(TS) >= LENGTHS[:, None]
    _, expected = theirs(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    for way in (True, False):
        ours.explicit = way
        with record(nn.ModuleDict({"only": ours})) as maps:
            ours(x, mask=Mask(key_lengths=LENGTHS))
        torch.testing.assert_close(maps["only"][0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", [True, False])
@pytest.mark.parametrize("training", [False, True])
def test_recording_does_not_change_results(way: bool, training: bool, batch: tuple[Tensor, ...]) -> None:
    model = translator(dropout=0.3).train(training)
    explicit(model, way)

    def run() -> list[Tensor]:
        torch.manual_seed(7)
        model.zero_grad()
        logits = model(*batch)
        logits.square().sum().backward()
        return [logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    plain = run()
    with record(model, heads=[1], queries=[0, -1]):
        recorded = run()
    for one, other in zip(plain, recorded, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("way", [True, False])
def test_only_selected_layers_are_recorded(way: bool, model: Transformer, batch: tuple[Tensor, ...]) -> None:
    explicit(model, way)
    with record(model) as everything:
        model(*batch)
    with record(model, layers=["decoder.*.cross", 0], heads=[3, -4], queries=[-1, 0]) as maps:
        model(*batch)
    assert list(maps) == ["decoder.blocks.0.cross", "decoder.blocks.1.cross", "encoder.blocks.0.attention"]
    for name, (some,) in maps.items():
        assert some.shape == (B, 2, 2, TS)
        torch.testing.assert_close(some, everything[name][0][:, [3, 0]][:, :, [-1, 0]], atol=1e-6, rtol=1e-5)


def test_only_selected_tensors_are_computed(
    model: Transformer, batch: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fused kernel, scores are computed only for the recorded heads and rows."""
    explicit(model, False)
    shapes = []
    product = attention_module._scaled_products

    def counting(query: Tensor, key: Tensor, scale: float) -> Tensor:
        shapes.append((tuple(query.shape), tuple(key.shape)))
        return product(query, key, scale)

    monkeypatch.setattr(attention_module, "_scaled_products", counting)
    model(*batch)
    assert not shapes
    with record(model, layers="decoder.blocks.1.cross", heads=[2], queries=[4]):
        model(*batch)
    assert shapes == [((B, 1, 1, 4), (B, 1, TS, 4))]


@pytest.mark.parametrize("way", [True, False])
@pytest.mark.parametrize("shape", [(HEADS, 5, 7), (1, HEADS, 5, 7), (5, 7), (1, HEADS, 1, 7)])
def test_a_selected_head_gets_its_own_bias(shape: tuple[int, ...], way: bool) -> None:
    torch.manual_seed(0)
    q, k, bias = torch.randn(2, HEADS, 5, 4), torch.randn(2, HEADS, 7, 4), torch.randn(shape)
    everything = torch.softmax(q @ k.transpose(-2, -1) / 2 + bias, dim=-1)
    model = nn.ModuleDict({"only": Attention(8, HEADS)})
    attention = model["only"]
    assert isinstance(attention, Attention)
    with record(model, heads=[2, 0], queries=[1]) as maps:
        attend(q, k, k, bias=bias, tap=attention.tap, explicit=way)
    torch.testing.assert_close(maps["only"][0], everything[:, [2, 0]][:, :, [1]], atol=1e-6, rtol=1e-5)


def test_there_is_one_map_per_call(model: Transformer, batch: tuple[Tensor, ...]) -> None:
    source, lengths, target = batch
    with torch.inference_mode(), record(model, layers="decoder.*") as maps:
        cache = model.start(source, lengths, TT)
        for t in range(TT):
            model.step(target[:, t : t + 1], cache)
    with record(model, layers="decoder.*") as whole:
        model(*batch)
    for name, calls in maps.items():
        assert len(calls) == TT
        for t, call in enumerate(calls):
            expected = whole[name][0][:, :, t : t + 1]
            expected = expected if name.endswith("cross") else expected[..., : t + 1]
            torch.testing.assert_close(call, expected, atol=1e-5, rtol=1e-5)


def test_attention_works_under_autocast(model: Transformer, batch: tuple[Tensor, ...]) -> None:
    with record(model) as expected:
        model(*batch)
    for way in (True, False):
        explicit(model, way)
        with record(model) as maps, torch.autocast("cpu", dtype=torch.bfloat16):
            model(*batch)
        for name in NAMES:
            torch.testing.assert_close(maps[name][0].float(), expected[name][0], atol=0.03, rtol=0.1)
            torch.testing.assert_close(maps[name][0].float().sum(-1), expected[name][0].sum(-1))


def test_an_empty_recording_raises(model: Transformer) -> None:
    with pytest.raises(RuntimeError, match=r"recorded nothing: none of encoder\.blocks\.0\.attention"), record(model):
        pass


def test_an_error_in_the_block_propagates_and_ends_recording(model: Transformer) -> None:
    with pytest.raises(KeyError, match="mine"), record(model):
        raise KeyError("mine")
    assert not any(tap.recordings for tap in model.modules() if isinstance(tap, Tap))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"layers": "encoder.*.cross"}, r"'encoder\.\*\.cross': expected one of encoder\.blocks\.0\.attention"),
        ({"layers": 6}, "layer 6 does not exist: expected 0 to 5"),
        ({"heads": [0, 4]}, r"encoder\.blocks\.0\.attention has no head 4: expected 0 to 3"),
        ({"layers": 0, "queries": [6]}, "query row 6 does not exist: expected 0 to 5"),
        ({"heads": 3}, "heads is 3: expected a list or None"),
        ({"layers": 1.5}, "layers is 1.5: expected a list or a string or a whole number or None"),
        ({"layers": []}, "found no attention layer: expected one of encoder"),
    ],
)
def test_missing_items_are_reported(
    wanted: dict[str, Any], message: str, model: Transformer, batch: tuple[Tensor, ...]
) -> None:
    with pytest.raises(ValueError, match=message), record(model, **wanted):
        model(*batch)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no attention"), record(nn.Linear(2, 2)):
        pass


@pytest.mark.parametrize("way", [True, False])
@pytest.mark.parametrize("heads", [[1], [0, -1]])
def test_zeroing_a_head_equals_zeroing_columns_of_the_output_projection(
    heads: list[int], way: bool, model: Transformer, batch: tuple[Tensor, ...]
) -> None:
    explicit(model, way)
    name = "decoder.blocks.0.cross"
    plain = model(*batch)
    with edit(model) as change:
        change.zero(name, heads=heads)
        edited = model(*batch)
    torch.testing.assert_close(model(*batch), plain, atol=0.0, rtol=0.0)  # undone
    projection = model.get_submodule(name).output
    assert isinstance(projection, nn.Linear)
    with torch.no_grad():
        for head in heads:
            columns = slice(head % HEADS * 4, head % HEADS * 4 + 4)
            projection.weight[:, columns] = 0.0
    torch.testing.assert_close(edited, model(*batch), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(edited, plain)


def test_models_without_heads_or_positions_are_unchanged(model: Transformer, batch: tuple[Tensor, ...]) -> None:
    plain = model(*batch)
    with edit(model) as change:
        change.zero("decoder.blocks.0.cross", heads=[])
        change.residual("encoder.blocks.0", torch.zeros(()), positions=[])
        assert torch.equal(model(*batch), plain)


@pytest.mark.parametrize("way", [True, False])
def test_replacing_a_map_by_itself_changes_nothing(way: bool, model: Transformer, batch: tuple[Tensor, ...]) -> None:
    explicit(model, way)
    with record(model) as maps:
        plain = model(*batch)
    with edit(model) as change:
        for name in NAMES:
            change.map(name, None, maps[name][0])
        torch.testing.assert_close(model(*batch), plain, atol=1e-5, rtol=1e-5)
        change.map(NAMES, [0, 2], lambda part: part)
        torch.testing.assert_close(model(*batch), plain, atol=1e-5, rtol=1e-5)


def test_a_uniform_map_averages_the_values() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"only": Attention(8, 2)})
    attention = model["only"]
    assert isinstance(attention, Attention)
    x = torch.randn(2, 5, 8)
    with edit(model) as change:
        change.map("only", None, torch.tensor(0.2))
        out = attention(x)
    expected = attention.output(attention.value(x).mean(1, keepdim=True)).expand_as(x)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)


def test_outputs_can_be_patched_from_another_run(model: Transformer, batch: tuple[Tensor, ...]) -> None:
    """Patching all heads of every decoder layer's cross-attention makes the second source invisible."""
    source, lengths, target = batch
    stored: dict[str, Tensor] = {}

    def store(name: str) -> Callable[[Tensor], Tensor]:
        def keep(part: Tensor) -> Tensor:
            stored[name] = part
            return part

        return keep

    crosses = [name for name in NAMES if name.endswith("cross")]
    with edit(model) as change:
        for name in crosses:
            change.output(name, None, store(name))
        expected = model(*batch)
    other = source.flip(1)
    with edit(model) as change:
        for name in crosses:
            change.output(name, None, stored[name])
        assert torch.equal(model(other, lengths, target), expected)
    assert not torch.allclose(model(other, lengths, target), expected)


def test_edits_end_with_their_block(model: Transformer, batch: tuple[Tensor, ...]) -> None:
    plain = model(*batch)

    def fail() -> None:
        with edit(model) as change:
            change.zero(None)
            change.map(None, [0], torch.zeros_like)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert torch.equal(model(*batch), plain)
    with edit(model) as outer:
        outer.zero(NAMES[0], [0])
        once = model(*batch)
        with edit(model) as inner:
            inner.zero(NAMES[0], [1])
            assert not torch.allclose(model(*batch), once)
        assert torch.equal(model(*batch), once)
    with pytest.raises(ValueError, match="expected 0 to 3"), edit(model) as change:
        change.zero(NAMES[0], [4])


@pytest.mark.parametrize("way", [True, False])
def test_recording_sees_the_edited_map(way: bool, model: Transformer, batch: tuple[Tensor, ...]) -> None:
    explicit(model, way)
    with edit(model) as change, record(model, layers=0) as maps:
        change.map(0, [-1], torch.zeros_like)
        model(*batch)
    (seen,) = maps[NAMES[0]]
    assert (seen[:, -1] == 0).all()
    assert (seen[:, :-1].sum(-1) > 0.99).all()


def test_gradients_pass_through_edits(model: Transformer, batch: tuple[Tensor, ...]) -> None:
    with edit(model) as change:
        change.zero("encoder.blocks.0.attention", [2])
        model(*batch).square().sum().backward()
    gradient = model.get_submodule("encoder.blocks.0.attention.value").weight.grad
    assert isinstance(gradient, Tensor)
    by_head = gradient.view(HEADS, -1).abs().sum(1)
    assert [bool(g > 0) for g in by_head] == [True, True, False, True]
