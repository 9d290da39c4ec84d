"""The image recipes of the table: each can be planned, and each ablation of DeiT removes a part of its recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyheads.runs.overrides import apply, from_mapping
from manyheads.tasks.images import ablation
from manyheads.tasks.images.recipes import ImageConfig
from manyheads.tasks.registry import RECIPES
from manyheads.tasks.train import train


def test_each_row_of_deits_ablation_takes_a_part_away() -> None:
    base, deit = RECIPES["deit/ablate"].config, RECIPES["deit"].config
    assert isinstance(base, ImageConfig)
    assert isinstance(deit, ImageConfig)
    for name, changes in ablation.ROWS.items():
        assert (apply(base, from_mapping(changes)) != base) == (name != "base"), name
        if name == "AutoAugment":  # instead of RandAugment: one of the changes alone is an error
            continue
        for key in changes:  # each changes something: it does not repeat what the base has
            assert apply(base, from_mapping({key: changes[key]})) != base, (name, key)
    for part in (
        "flip",
        "randaugment",
        "mixup",
        "cutmix",
        "erasing",
        "magnitude",
        "magnitude_std",
        "switch",
        "repeats",
    ):
        assert getattr(base.augmentation, part) == getattr(deit.augmentation, part)


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if name.startswith(("cifar10/", "mnist/", "deit", "image-"))]
)
def test_a_dry_run_plans_every_recipe(name: str, tmp_path: Path) -> None:
    planned = train(name, {"batch_items": 8}, out=tmp_path / "run", dry_run=True)
    assert planned.get("each", planned)["parameters"] > 1000
    assert not (tmp_path / "run").exists()
    if not name.startswith("image-"):
        with pytest.raises(ValueError, match="requires the setting data|learns from a teacher"):
            train(name, {}, out=tmp_path / "run")
