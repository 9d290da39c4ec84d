"""FLOP counts, compared with published formulas and with torch's FLOP counter."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from manyheads.analysis.costs import flops, memory, parameters, preset_model, summary
from manyheads.core.block import Block
from manyheads.core.cache import KVCache
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.models.local_attention import LocalAttentionConfig, LocalAttentionNet
from manyheads.models.transformer import Transformer, TransformerConfig


@pytest.mark.parametrize(
    ("name", "total", "non_embedding"),
    [
        ("transformer/base", 63_082_496, 44_138_496),
        ("transformer/big", 176_357_376 + 37_000 * 1024, 176_357_376),
        ("transformer/blog", 33_570_389, 12_624_896),
        ("transformer/tiny", 1_325_056 + 10_000 * 128, 1_325_056),
        ("transformer/small", 11_059_200 + 10_000 * 256, 11_059_200),
        ("text-classifier/textbook", 650_689, 10_656 + 33),  # Chollet's block, and one unit for two labels
    ],
)
def test_preset_counts_match_publications(name: str, total: int, non_embedding: int) -> None:
    costs = summary(preset_model(name))["parameters"]
    assert (costs["total"], costs["non_embedding"]) == (total, non_embedding)
    assert sum(costs["parts"].values()) == total


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("bert/base-uncased", 109_482_240),
        ("bert/base-cased", 108_310_272),
        ("bert/large-uncased", 335_141_888),
        ("bert/tiny", 4_385_920),
        ("roberta/base", 124_645_632),  # as transformers' RobertaModel with its pooler
        ("roberta/large", 355_359_744),
        ("gpt/117m", 116_534_784),
        ("gpt2/124m", 124_439_808),
        ("gpt2/1558m", 1_557_611_200),
        ("gpt2/baby", 10_745_088),
        # 12 d^2 + 13 d in each of 96 layers, d = 12,288; embeddings of 50,257 words and 2,048 positions; the last norm
        ("gpt3/175b", 96 * (12 * 12_288**2 + 13 * 12_288) + (50_257 + 2048 + 2) * 12_288),
        ("vit/b16", 86_567_656),
        ("resnet/50-se", 28_088_024),
        ("nonlocal/50", 32_915_496),
        ("local-attention/50", 18_031_592),
        ("deit/ti16", 5_910_800),
    ],
)
def test_presets_of_other_families_are_found(name: str, total: int) -> None:
    model = preset_model(name)
    assert sum(parameters(model).values()) == total
    assert all(p.device.type == "meta" for p in model.parameters())


def test_other_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown preset 'transformer/huge': did you mean transformer/big?"):
        preset_model("transformer/huge")


@pytest.mark.parametrize(
    ("name", "multiply_adds"),
    [("resnet/18", 1.8e9), ("resnet/34", 3.6e9), ("resnet/152", 11.3e9)],  # table 1 of the ResNet paper
)
def test_image_flops_match_the_paper(name: str, multiply_adds: float) -> None:
    counts = flops(preset_model(name))
    assert counts["forward"] / 2 == pytest.approx(multiply_adds, rel=0.03)
    assert (counts["image"], counts["tokens"]) == ([3, 224, 224], [1])
    assert counts["forward_per_token"] == counts["forward"]


def test_neighborhood_scores_count_the_papers_products() -> None:
    sizes = {"depths": (1,), "widths": (32,), "stem_width": 8, "heads": 2, "window": 3, "image_size": 16}
    config = LocalAttentionConfig(**sizes, stem="3x3", front="convolution", query_block=1)  # type: ignore[arg-type]
    parts = flops(LocalAttentionNet(config))["parts"]
    # 16 x 16 pixels, 8 channels: scores and mixing over 9 neighbors, and row and column embeddings of 3 shifts
    assert parts["stages.layers.mixer.scores"] == 2 * 16 * 16 * 8 * 9 * 2
    assert parts["stages.layers.mixer.relative"] == 2 * 16 * 16 * 8 * 3
    assert parts["stages.layers.mixer.query"] == 2 * 16 * 16 * 8 * 8
    assert "stages.scores" in flops(preset_model("nonlocal/20-small"))["parts"]


ODD = TransformerConfig(
    source_vocab=31, target_vocab=43, pad=0, end=1, start=0, width=24, encoder_layers=2, decoder_layers=3,
    encoder_heads=2, decoder_heads=4, encoder_feed_forward=40, decoder_feed_forward=56, tie="none", final_norm=True,
    output_bias=True, positions="learned", attention_bias=False,
)  # fmt: skip


def products(width: int, inner: int, hidden: int, tokens: int, memory: int | None) -> int:
    """Multiply-adds of a block by the formulas of the paper (table 1 and section 3), twice each."""
    attention = tokens * 4 * width * inner + 2 * tokens * tokens * inner
    cross = 0 if memory is None else (tokens + memory) * 2 * width * inner + 2 * tokens * memory * inner
    return 2 * (attention + cross + tokens * 2 * width * hidden)


@pytest.mark.parametrize(("source", "target"), [(7, 5), (1, 1), (3, 11)])
@pytest.mark.parametrize("name", ["odd", "transformer/tiny", "transformer/big"])
def test_flops_equal_the_formulas(name: str, source: int, target: int) -> None:
    model = Transformer(ODD) if name == "odd" else preset_model(name)
    assert isinstance(model, Transformer)
    c, counted = model.config, flops(model, source, target)
    encoder = c.encoder_layers * products(c.width, c.width, c.encoder_feed_forward, source, None)
    decoder = c.decoder_layers * products(c.width, c.width, c.decoder_feed_forward, target, source)
    for stack, expected in (("encoder", encoder), ("decoder", decoder)):
        assert sum(n for part, n in counted["parts"].items() if part.startswith(stack)) == expected
    assert counted["parts"]["output"] == 2 * target * model.output_weight.numel()
    assert counted["forward"] == sum(counted["parts"].values())
    assert counted["parts"]["encoder.scores"] == c.encoder_layers * 4 * source * source * c.width


def test_a_model_with_few_positions_is_counted_at_its_maximum() -> None:
    model = Transformer(TransformerConfig(source_vocab=9, target_vocab=9, max_positions=12, pad=0, end=1, start=0))
    assert flops(model) == flops(model, 12)


def test_parts_list_their_shapes() -> None:
    costs = summary(preset_model("transformer/base"))
    part = "decoder.feed_forward.expand"
    assert costs["parameters"]["shapes"][part] == "6 x (2048 x 512 + 2048)"
    assert costs["parameters"]["parts"][part] == 6 * (2048 * 512 + 2048)
    assert costs["flops"]["parts"][part] == 6 * 2 * 32 * 2048 * 512


def test_memory_equals_torchs_allocation() -> None:
    model = Transformer(ODD)
    held = memory(model)
    assert held["weights"] == sum(p.untyped_storage().nbytes() for p in model.parameters())
    optimizer = torch.optim.Adam(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moments = sum(state[key].nbytes for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq"))
    assert held["optimizer"] == moments
    assert held["training"] == 2 * held["weights"] + moments
    cache = model.start(torch.zeros(1, 6, dtype=torch.long), None, 9)
    crossed = sum(tensor.nbytes for layer in range(3) for tensor in cache.cross(layer))
    assert held["cache_per_source_token"] * 6 == crossed
    pairs = [
        block.attention.project_keys_values(torch.zeros(1, 1, 24))
        for block in model.decoder.blocks
        if isinstance(block, Block)
    ]
    assert held["cache_per_token"] == sum(key.nbytes + value.nbytes for key, value in pairs)


def test_narrow_keys_share_a_cache_with_wide_values() -> None:
    model = Transformer(replace(ODD, key_width=2))
    start = partial(model.start, torch.zeros(1, 6, dtype=torch.long), None)
    room = [sum(t.untyped_storage().nbytes() for t in _kept(model, start(size))) for size in (9, 10)]
    assert memory(model)["cache_per_token"] == room[1] - room[0]


def _kept(model: Transformer, cache: KVCache) -> list[Tensor]:
    """The memory that a cache takes when one token has been written."""
    model.step(torch.zeros(1, 1, dtype=torch.long), cache)
    return [value for value in vars(cache).values() if isinstance(value, Tensor) and value.dim() == 6]


def test_a_frozen_berts_embeddings_are_embeddings() -> None:
    model = BertFeatures(BertFeaturesConfig(vocab=90, width=8, heads=2, layers=4, feed_forward=8, labels=("a", "b")))
    counts = summary(model)["parameters"]
    bert = summary(model.bert)["parameters"]
    assert counts["total"] - counts["non_embedding"] == bert["total"] - bert["non_embedding"] > 90 * 8


def test_tied_matrices_count_once() -> None:
    sizes = {"source_vocab": 50, "target_vocab": 50, "pad": 0, "end": 1, "start": 0, "width": 8, "encoder_heads": 2}
    counts = {
        tie: sum(parameters(Transformer(TransformerConfig(**sizes, tie=tie))).values())  # type: ignore[arg-type]
        for tie in ("all", "target", "none")
    }
    assert counts["target"] - counts["all"] == counts["none"] - counts["target"] == 50 * 8
