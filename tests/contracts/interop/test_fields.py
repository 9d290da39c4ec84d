"""Configuration fields: each is saved in config.json, fixed by the family, or inferred, so none is lost silently."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from manyheads.core.experts import ExpertConfig
from manyheads.interop.family import Family
from manyheads.interop.formats import FAMILIES

INITIALIZATION = {"init", "position_std", "embedding_init"}  # of no effect once there are weights
EXPERTS = {field.name for field in fields(ExpertConfig)}  # of no effect with feed_forward=dense
_GPT = {"head", "labels", "pad"}
# fields that `Family.infer` or a row of another field reads back, by family
INFERRED: dict[str, set[str]] = {
    "marian": {"output_bias", "source_pad"},
    "pegasus": {"output_bias", "source_pad"},
    "bert": {"head", "labels"},
    "roberta": {"head", "labels", "position_offset"},
    "xlm-roberta": {"head", "labels", "position_offset"},
    "distilbert": {"head", "labels"},
    "megatron-bert": {"head", "labels"},
    "gpt2": _GPT,
    "openai-gpt": _GPT,
    "resnet": {"labels"},
    "efficientnet": {"labels", "padding", "centered"},  # one row reads both settings of the padding
    # `labels`, and the settings of the ResNet, which one row reads
    "detr": {"labels", "block", "channels", "depths", "halve_first", "stem_width", "stride_in_1x1", "widths"},
    "regnet": {"labels"},
    "bit": {"labels"},
    "vit": {"labels", "fused", "representation"},
    "deit": {"labels", "fused", "representation"},
    "dinov2": {"labels", "pool", "fused"},  # `fused` has no effect without a distillation token
    "dinov2_with_registers": {"labels", "pool", "fused"},
    "clip": {"projection", "fused", "target"},  # `target` has no effect without labels
    "clip_vision_model": {"projection", "fused", "target"},
}


def unaccounted(family: Family) -> set[str]:
    rows = {getattr(row, "ours", getattr(row, "name", "")) for row in family.settings.rows}
    known = rows | set(family.settings.ours_only) | INFERRED.get(family.model_type, set()) | INITIALIZATION | EXPERTS
    return {field.name for field in fields(family.config)} - known


@pytest.mark.parametrize("name", FAMILIES)
def test_each_field_is_saved_fixed_or_inferred(name: str) -> None:
    assert not unaccounted(FAMILIES[name]), f"add a row, or an entry of ours_only, to the settings of {name}"


def test_a_field_without_a_rule_is_named() -> None:
    rows = tuple(row for row in FAMILIES["resnet"].settings.rows if getattr(row, "ours", "") != "halve_first")
    forgetful = replace(FAMILIES["resnet"], settings=replace(FAMILIES["resnet"].settings, rows=rows))
    assert unaccounted(forgetful) == {"halve_first"}
