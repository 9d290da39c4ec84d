"""Table of the recipes of all papers in this package, by name."""

from __future__ import annotations

from manyheads.runs.recipe import Recipe
from manyheads.tasks import registry
from papers.ablations.recipes import RECIPES as ABLATIONS
from papers.biases.recipes import RECIPES as BIASES
from papers.capacity.recipes import RECIPES as CAPACITY
from papers.directions.recipes import RECIPES as DIRECTIONS
from papers.nonlocal_net.recipes import RECIPES as NONLOCAL_NET
from papers.rivals.recipes import RECIPES as RIVALS
from papers.text_classifier.recipes import RECIPES as TEXT_CLASSIFIER
from papers.universal.recipes import RECIPES as UNIVERSAL

RECIPES: dict[str, Recipe] = {
    **ABLATIONS, **BIASES, **CAPACITY, **DIRECTIONS, **NONLOCAL_NET, **RIVALS, **TEXT_CLASSIFIER, **UNIVERSAL,
}  # fmt: skip
ALL = {**registry.RECIPES, **RECIPES}  # with those of the package
