"""Counts against the canon, and against torch's own counter of operations."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from manyheads.analysis import wmt14
from manyheads.analysis.accounting import flops, memory, meta_model, parameters, preset_model, preset_names, summary
from manyheads.core.block import Block
from manyheads.models.transformer import Transformer, TransformerConfig


@pytest.mark.parametrize(
    ("name", "total", "non_embedding"),
    [
        ("transformer/base", 63_082_496, 44_138_496),
        ("transformer/big", 176_357_376 + 37_000 * 1024, 176_357_376),
        ("transformer/blog", 33_570_389, 12_624_896),
        ("transformer/tiny", 1_325_056 + 10_000 * 128, 1_325_056),
        ("transformer/small", 11_059_200 + 10_000 * 256, 11_059_200),
    ],
)
def test_presets_count_what_was_published(name: str, total: int, non_embedding: int) -> None:
    found = summary(preset_model(name))["parameters"]
    assert (found["total"], found["non_embedding"]) == (total, non_embedding)
    assert sum(found["parts"].values()) == total


def test_every_preset_is_listed_and_others_are_refused() -> None:
    assert preset_names() == [f"transformer/{size}" for size in ("tiny", "small", "blog", "base", "big")]
    with pytest.raises(ValueError, match="unknown preset 'transformer/huge': valid are transformer/tiny"):
        preset_model("transformer/huge")


ODD = TransformerConfig(
    source_vocab=31, target_vocab=43, pad=0, end=1, start=0, width=24, encoder_layers=2, decoder_layers=3,
    encoder_heads=2, decoder_heads=4, encoder_feed_forward=40, decoder_feed_forward=56, tie="none", final_norm=True,
    output_bias=True, positions="learned", attention_bias=False,
)  # fmt: skip


@pytest.mark.parametrize(("source", "target"), [(7, 5), (1, 1), (3, 11)])
@pytest.mark.parametrize("name", ["odd", "transformer/tiny", "transformer/big"])
def test_flops_equal_torchs_counter(name: str, source: int, target: int) -> None:
    model = (meta_model(ODD) if name == "odd" else preset_model(name)).eval()
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        model(torch.zeros(1, source, dtype=torch.long), None, torch.zeros(1, target, dtype=torch.long))
    counted = flops(model, source, target)
    assert counted["forward"] == counter.get_total_flops()
    by_module = counter.get_flop_counts()
    assert counted["parts"]["output"] == 2 * target * model.output_weight.numel()
    for stack in ("encoder", "decoder"):
        mine = sum(n for part, n in counted["parts"].items() if part.startswith(stack))
        assert mine == sum(by_module[f"Transformer.{stack}"].values())


def test_memory_is_what_torch_allocates() -> None:
    model = Transformer(ODD)
    held = memory(model)
    assert held["weights"] == sum(p.untyped_storage().nbytes() for p in model.parameters())
    optimiser = torch.optim.Adam(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    moments = sum(state[key].nbytes for state in optimiser.state.values() for key in ("exp_avg", "exp_avg_sq"))
    assert held["optimiser"] == moments
    assert held["training"] == 2 * held["weights"] + moments
    cache = model.start(torch.zeros(1, 6, dtype=torch.long), None, 9)
    crossed = sum(tensor.nbytes for layer in range(3) for tensor in cache.cross(layer))
    assert held["cache_per_source_token"] * 6 == crossed
    pairs = [
        block.attention.keys_values(torch.zeros(1, 1, 24)) for block in model.decoder.blocks if isinstance(block, Block)
    ]
    assert held["cache_per_target_token"] == sum(key.nbytes + value.nbytes for key, value in pairs)


def test_tied_matrices_count_once() -> None:
    sizes = {"source_vocab": 50, "target_vocab": 50, "pad": 0, "end": 1, "start": 0, "width": 8, "encoder_heads": 2}
    counts = {
        tie: sum(parameters(meta_model(TransformerConfig(**sizes, tie=tie))).values())  # type: ignore[arg-type]
        for tie in ("all", "target", "none")
    }
    assert counts["target"] - counts["all"] == counts["none"] - counts["target"] == 50 * 8


@pytest.mark.parametrize(
    ("name", "computed", "published"), [("transformer/base", 3.283e18, 3.3e18), ("transformer/big", 2.298e19, 2.3e19)]
)
def test_training_cost_of_the_published_table(name: str, computed: float, published: float) -> None:
    cost = wmt14.training_cost(name)
    assert cost is not None
    assert cost["flops"] == pytest.approx(computed, rel=1e-3)
    assert cost["published"] == published
    assert cost["agrees"]
    assert wmt14.training_cost("transformer/tiny") is None


def test_the_table_names_its_source_and_every_row_has_a_score() -> None:
    table = wmt14.table()
    assert "table 2" in table["source"]
    assert len(table["rows"]) == 10
    assert all(row["bleu"] for row in table["rows"])
