"""Attention maps of every kind of model, compared with transformers and with plain sums."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from manyheads import directory
from manyheads.analysis.maps import Layer, MapOptions, attention_maps
from manyheads.analysis.maps.sides import SPECIAL
from manyheads.core.attention import Attention
from manyheads.models import conv_attention, local_attention, nonlocal_net
from manyheads.models.presets import preset
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.transformer import Transformer, TransformerConfig
from tests.support.map_examples import example

SIZES: Any = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
EAGER: Any = {"attn_implementation": "eager"}


def saved(model: transformers.PreTrainedModel, path: Path) -> nn.Module:
    """The same weights in our model."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    return directory.load(path).model


def assert_equal(layers: list[Layer], theirs: tuple[Tensor, ...]) -> None:
    assert len(layers) == len(theirs)
    for layer, attention in zip(layers, theirs, strict=True):
        assert layer.weights.shape == attention.shape
        np.testing.assert_allclose(layer.weights, attention.detach().numpy(), atol=1e-5)


def test_bert_maps_equal_transformers(tmp_path: Path) -> None:
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=12, **SIZES, **EAGER)
    theirs = transformers.BertModel(config).eval()
    ours = saved(theirs, tmp_path)
    tokens = torch.arange(9)[None] + 3
    segments = (torch.arange(9) > 4).long()[None]
    expected = theirs(tokens, token_type_ids=segments, output_attentions=True).attentions
    assert_equal(attention_maps(ours, tokens, torch.tensor([9]), segments)["self"], expected)


def test_gpt2_maps_equal_transformers(tmp_path: Path) -> None:
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=40, n_positions=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, **EAGER
        )
    ).eval()
    ours = saved(theirs, tmp_path)
    tokens = torch.arange(35)[None]  # long enough for the fused kernel
    assert_equal(attention_maps(ours, tokens)["self"], theirs(tokens, output_attentions=True).attentions)


def test_vit_maps_equal_transformers(tmp_path: Path) -> None:
    config = transformers.ViTConfig(image_size=12, patch_size=4, num_channels=1, **SIZES, **EAGER)
    theirs = transformers.ViTForImageClassification(config).eval()
    ours = saved(theirs, tmp_path)
    images = torch.randn(1, 1, 12, 12)
    maps = attention_maps(ours, images)
    assert_equal(maps["self"], theirs(images, output_attentions=True).attentions)
    assert maps["self"][0].keys.tokens[:3] == ("[class]", "0,0", "0,1")
    assert maps["self"][0].keys.grid == (3, 3)


def test_marian_maps_equal_transformers(tmp_path: Path) -> None:
    theirs = transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=30, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=4, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=20, pad_token_id=29,
        decoder_start_token_id=29, eos_token_id=0, init_std=0.5, **EAGER,
    )).eval()  # fmt: skip
    theirs.save_pretrained(tmp_path)
    ours = directory.load(tmp_path).model
    source, target = torch.tensor([[5, 6, 7, 8, 0]]), torch.tensor([[29, 4, 3]])
    expected = theirs(source, decoder_input_ids=target, output_attentions=True)
    maps = attention_maps(ours, source, None, target)
    assert list(maps) == ["encoder", "decoder", "cross"]
    assert_equal(maps["encoder"], expected.encoder_attentions)
    assert_equal(maps["decoder"], expected.decoder_attentions)
    assert_equal(maps["cross"], expected.cross_attentions)


def translator() -> Transformer:
    return Transformer(TransformerConfig(
        source_vocab=20, target_vocab=20, pad=19, end=0, start=19, width=8, encoder_layers=2, decoder_layers=3,
        encoder_heads=2, decoder_heads=4, encoder_feed_forward=8, decoder_feed_forward=8,
    )).train()  # fmt: skip


def test_layers_heads_and_axes_are_selected_and_missing_ones_reported() -> None:
    model, inputs = translator(), (torch.tensor([[1, 2, 3]]), None, torch.tensor([[19, 4]]))
    maps = attention_maps(model, *inputs, name="t", options=MapOptions(axis="cross", layers=[-1], heads=[3, -4]))
    (layer,) = maps["cross"]
    assert (layer.name, layer.heads, layer.weights.shape) == ("decoder.blocks.2.cross", (3, 0), (1, 2, 2, 3))
    assert model.training
    whole = attention_maps(model, *inputs)["cross"][2].weights
    np.testing.assert_allclose(layer.weights, whole[:, [3, 0]], atol=1e-6)
    with pytest.raises(ValueError, match="t has no 'self' attention: it has encoder, decoder, cross"):
        attention_maps(model, *inputs, name="t", options=MapOptions(axis="self"))
    with pytest.raises(ValueError, match="cross layer 3 does not exist: valid are 0 to 2"):
        attention_maps(model, *inputs, options=MapOptions(axis="cross", layers=[3]))
    with pytest.raises(ValueError, match=r"encoder.blocks.0.attention has no head 2: expected 0 to 1"):
        attention_maps(model, *inputs, options=MapOptions(heads=[2]))
    chosen: Any
    for chosen in (np.array([-1]), [np.int64(2)], (2,)):
        of_layers = attention_maps(model, *inputs, options=MapOptions(axis="cross", layers=chosen))
        assert of_layers["cross"][0].number == 2
        of_heads = attention_maps(model, *inputs, options=MapOptions(axis="cross", heads=chosen))
        assert of_heads["cross"][0].heads in ((2,), (3,))
    wrong: Any
    for name, wrong in (("layers", []), ("heads", np.array([], int)), ("heads", [0.5]), ("layers", 1), ("heads", "a")):
        with pytest.raises(ValueError, match=rf"{name} are .*expected") as caught:
            attention_maps(model, *inputs, options=MapOptions(**{name: wrong}))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="ResNet has no attention layers"):
        attention_maps(ResNet(ResNetConfig(depths=(1,), widths=(8,), labels=("a", "b"))), torch.zeros(1, 3, 32, 32))


class Tied(nn.Module):
    """One attention, applied again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.attention(x)
        return x


def test_a_recurrent_layer_has_one_map_per_step() -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(1, 4, 8)
    layers = attention_maps(model, x)["self"]
    assert [layer.step for layer in layers] == [1, 2, 3]
    with torch.no_grad():
        second = attention_maps(model.attention, model.attention(x))["self"][0].weights
    np.testing.assert_allclose(layers[1].weights, second, atol=1e-6)
    chosen = attention_maps(model, x, options=MapOptions(layers=[-1, 2]))["self"]  # as they are shown: by their steps
    assert [(layer.number, layer.step) for layer in chosen] == [(0, 3), (0, 2)]
    np.testing.assert_array_equal(chosen[1].weights, layers[1].weights)
    for missing in (0, 4, -4):
        with pytest.raises(ValueError, match=f"self step {missing} does not exist: valid are 1 to 3"):
            attention_maps(model, x, options=MapOptions(layers=[missing]))


def test_local_attention_maps_are_expanded_over_the_image() -> None:
    """The spread map times all values must be what the layer gives."""
    torch.manual_seed(0)
    height, width = 7, 5
    model = nn.Sequential(local_attention.LocalAttention(8, 8, heads=2, window=3, query_block=2))
    layer, images = model[0], torch.randn(1, 8, height, width)
    assert isinstance(layer, local_attention.LocalAttention)
    spread = attention_maps(model, images)["self"][0]
    assert spread.weights.shape == (1, 2, 35, 35)
    assert spread.queries.grid == (7, 5)
    with torch.no_grad():
        values = layer.value(images.permute(0, 2, 3, 1)).flatten(1, 2).unflatten(-1, (2, 4)).transpose(1, 2)
        mixed = torch.from_numpy(spread.weights) @ values  # (1, 2, 35, 4)
        expected = layer(images)
    np.testing.assert_allclose(mixed.transpose(2, 3).reshape(1, 8, height, width), expected, atol=1e-5)
    corner = spread.weights[0, 0, 0].reshape(7, 5)
    assert (corner[2:] == 0).all()
    assert (corner[:2, :2] > 0).all()


def test_stem_maps_stay_inside_their_blocks() -> None:
    stem = nn.Sequential(local_attention.AttentionStem(3, 8, heads=2, window=2))
    weights = attention_maps(stem, torch.randn(1, 3, 4, 6))["self"][0].weights
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    y, x = np.divmod(np.arange(24), 6)
    same = (y[:, None] // 2 == y // 2) & (x[:, None] // 2 == x // 2)
    assert (weights[0, :, ~same] == 0).all()


def test_oversized_expanded_maps_are_refused() -> None:
    model = nn.Sequential(local_attention.LocalAttention(8, 8, heads=2, window=3, query_block=2))
    with pytest.raises(ValueError, match="2 heads on 120 x 120 positions are too large: select fewer heads, or layers"):
        attention_maps(model, torch.zeros(1, 8, 120, 120))


def test_pooled_keys_cover_their_region() -> None:
    maps = attention_maps(nn.Sequential(nonlocal_net.NonLocalBlock(8)), torch.randn(1, 8, 7, 4))
    layer = maps["self"][0]
    assert layer.weights.shape == (1, 1, 28, 6)
    assert (layer.queries.grid, layer.keys.grid) == ((7, 4), (3, 2))
    assert layer.keys.cover == (6 / 7, 1.0)
    np.testing.assert_allclose(layer.weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("kind", ["quadratic", "relative", "content"])
def test_conv_attention_maps_cover_its_pixels(kind: str) -> None:
    config = preset(f"conv-attention/{kind}-small", labels=("a", "b"), image_size=8, layers=1, heads=2)
    maps = attention_maps(conv_attention.ConvAttention(config), torch.randn(1, 3, 8, 8))
    (layer,) = maps["self"]
    assert layer.weights.shape == (1, 2, 16, 16)
    assert layer.keys.grid == (4, 4)


def test_words_sum_over_keys_and_average_over_queries() -> None:
    before, after = example()["self"][0], example().words()["self"][0]
    assert after.keys.tokens == ("[CLS]", "unlikely", "story", "[SEP]")
    assert after.keys.words == (SPECIAL, 0, 1, SPECIAL)
    w = before.weights[0, 1]
    np.testing.assert_allclose(after.weights[0, 1, 0, 1], w[0, 1] + w[0, 2], rtol=1e-6)
    np.testing.assert_allclose(after.weights[0, 1, 1, 3], (w[1, 4] + w[2, 4]) / 2, rtol=1e-6)
    np.testing.assert_allclose(after.weights[0, 1, 1, 1], (w[1, 1] + w[1, 2] + w[2, 1] + w[2, 2]) / 2, rtol=1e-6)
    np.testing.assert_allclose(after.weights.sum(-1), 1, rtol=1e-5)


def test_arrays_are_saved_without_pickles(tmp_path: Path) -> None:
    maps = example()
    maps.save(tmp_path / "maps.npz")
    with np.load(tmp_path / "maps.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["self/1"], maps["self"][1].weights)
        assert arrays["self/1/keys"].tolist() == ["[CLS]", "un", "likely", "story", "[SEP]"]
        assert str(arrays["self/0/name"]) == "layer.0"
        assert arrays["self/1/layer"] == 1
        assert "self/0/keys/steps" not in arrays


def test_a_data_frame_has_one_row_per_weight() -> None:
    maps = example()
    frame = maps.frame()
    assert len(frame) == 2 * 2 * 25
    assert set(replace(maps, axes={"self": maps["self"][1:]}).frame().layer) == {1}
    row = frame.query("layer == 1 and head == 0 and query == 3 and key == 1").iloc[0]
    assert (row.query_token, row.key_token) == ("story", "un")
    assert row.weight == maps["self"][1].weights[0, 0, 3, 1]
    np.testing.assert_allclose(frame.groupby(["layer", "head", "query"]).weight.sum(), 1, rtol=1e-5)
