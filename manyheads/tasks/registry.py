"""Table of all training recipes, by name."""

from __future__ import annotations

from manyheads.errors import UserError
from manyheads.runs.overrides import nearest
from manyheads.runs.recipe import Recipe
from manyheads.tasks.answering.recipes import RECIPES as ANSWERING
from manyheads.tasks.classification.recipes import RECIPES as CLASSIFICATION
from manyheads.tasks.digits.recipes import RECIPES as DIGITS
from manyheads.tasks.directions.recipes import RECIPES as DIRECTIONS
from manyheads.tasks.images.recipes import RECIPES as IMAGES
from manyheads.tasks.language.recipes import RECIPES as LANGUAGE
from manyheads.tasks.masked_words.recipes import RECIPES as MASKED_WORDS
from manyheads.tasks.tagging.recipes import RECIPES as TAGGING
from manyheads.tasks.translation.recipes import RECIPES as TRANSLATION

RECIPES: dict[str, Recipe] = {
    **TRANSLATION,
    **MASKED_WORDS,
    **CLASSIFICATION,
    **DIRECTIONS,
    **TAGGING,
    **ANSWERING,
    **LANGUAGE,
    **IMAGES,
    **DIGITS,
}


def find(name: str) -> Recipe:
    """Return the recipe with the given name. Raises UserError, with the most similar name, if there is none."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]
