"""Parameter counts of Transformers, compared with published values."""

from typing import Any

import pytest
import torch

from manyheads.models.presets import preset
from manyheads.models.transformer import Transformer
from tests.unit.models.test_transformer import SPECIAL, V, count


@pytest.mark.parametrize(
    ("name", "settings", "core"),
    [
        ("base", {}, 44_138_496),
        ("base", {"attention_bias": False}, 44_101_632),
        ("base", {"final_norm": True}, 44_140_544),  # torch.nn.Transformer()
        ("big", {}, 176_357_376),
        ("big", {"attention_bias": False}, 176_283_648),
        ("blog", {"tie": "target", "output_bias": False}, 12_624_896),
        ("tiny", {}, 1_325_056),
        ("small", {}, 11_059_200),
    ],
)
def test_parameter_counts(name: str, settings: dict[str, Any], core: int) -> None:
    with torch.device("meta"):
        model = Transformer(preset(name, "transformer", source_vocab=V, target_vocab=V, **SPECIAL, **settings))
    assert count(model.encoder) + count(model.decoder) == core
    tables = 2 if name == "blog" else 1
    assert count(model) == core + tables * V * model.config.width
