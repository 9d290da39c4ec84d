"""Attributes that every model declares, next to the fields of its configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyheads.core.interface import Model
from manyheads.models.presets import FAMILIES

REQUIRED: dict[str, Any] = {
    "vocab": 20, "source_vocab": 20, "target_vocab": 20, "pad": 1, "end": 2, "start": 1, "labels": ("a", "b"),
}  # fmt: skip


@pytest.mark.parametrize("family", list(FAMILIES))
def test_attributes_of_a_model_are_those_of_its_configuration(family: str) -> None:
    kind = FAMILIES[family].configuration()
    given = {name: value for name, value in REQUIRED.items() if name in kind.__dataclass_fields__}
    if "head" in kind.__dataclass_fields__ and "labels" in given:
        given["head"] = "sequence"
    config = kind(**given)
    with torch.device("meta"):
        model: Model[Any] = FAMILIES[family].model_class()(config)
    for name, default in (("pad", None), ("max_positions", None), ("labels", ())):
        assert getattr(model, name) == vars(config).get(name, default), name
    assert model.head_name == vars(config).get("head")
    assert model.config is config
    assert model.reads_pairs == ("segment_types" in vars(config) or family.startswith("gpt"))
