"""Training settings of recipes depend on the start: new weights or those of another model."""

from pathlib import Path
from typing import Any

import pytest

from manyheads import directory
from manyheads.models.presets import build, preset
from manyheads.runs.recipe import FINE_TUNING
from manyheads.tasks.registry import RECIPES
from manyheads.tasks.train import train


@pytest.mark.parametrize("name", [n for n, recipe in RECIPES.items() if recipe.init == "may" and not recipe.requires])
def test_pretrained_weights_keep_their_lower_learning_rate(name: str) -> None:
    new, tuned = RECIPES[name].starting_config(None).training, RECIPES[name].starting_config("MODEL").training
    assert tuned.learning_rate <= 2 * FINE_TUNING.learning_rate < new.learning_rate / 4
    assert tuned.schedule == "linear"


@pytest.mark.parametrize(
    ("recipe", "setting", "value"),
    [
        ("language-modeling", "vocab", 300), ("text-classification", "pad", 3), ("tagging", "head", "sequence"),
        ("translation", "end", 7), ("translation", "source_vocab", 300),
    ],
)  # fmt: skip
def test_settings_derived_from_data_cannot_be_set(recipe: str, setting: str, value: Any, tmp_path: Path) -> None:
    for dry_run in (True, False):
        with pytest.raises(ValueError, match=f"cannot set {setting}: the data and the task determine"):
            train(recipe, {f"model.{setting}": value}, out=tmp_path / "run", dry_run=dry_run)


def test_another_model_for_classification_is_named(tmp_path: Path) -> None:
    directory.save(tmp_path / "net", build(preset("resnet/20-small", image_size=8, labels=("a", "b"))))
    for split in ("train", "val"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + "red\ta\nblue\tb\n" * 4)
    with pytest.raises(
        ValueError,
        match="net: found a manyheads-resnet model, but single-sentence starts from a BERT, a GPT or an ELMo",
    ):
        train("single-sentence", {"data": str(tmp_path)}, out=tmp_path / "run", init=str(tmp_path / "net"))
