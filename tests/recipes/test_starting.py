"""What a recipe says of training suits what it starts from: new weights, or those of another model."""

import pytest

from manyheads.recipes.recipe import FINE_TUNING
from manyheads.recipes.table import RECIPES


@pytest.mark.parametrize("name", [n for n, recipe in RECIPES.items() if recipe.init == "may" and not recipe.requires])
def test_weights_that_are_trained_already_are_not_overrun_by_the_rate_of_new_ones(name: str) -> None:
    new, tuned = RECIPES[name].starting_config(None).training, RECIPES[name].starting_config("MODEL").training
    assert tuned.learning_rate <= 2 * FINE_TUNING.learning_rate < new.learning_rate / 4
    assert tuned.schedule == "linear"
