"""Table of all training recipes, by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from manyheads.errors import UserError
from manyheads.runs.recipe import Recipe
from manyheads.tasks.answering.recipes import RECIPES as ANSWERING
from manyheads.tasks.classification.recipes import RECIPES as CLASSIFICATION
from manyheads.tasks.images.recipes import RECIPES as IMAGES
from manyheads.tasks.language.recipes import RECIPES as LANGUAGE
from manyheads.tasks.masked_words.recipes import RECIPES as MASKED_WORDS
from manyheads.tasks.tagging.recipes import RECIPES as TAGGING
from manyheads.tasks.translation.recipes import RECIPES as TRANSLATION

RECIPES: dict[str, Recipe] = {
    **TRANSLATION,
    **MASKED_WORDS,
    **CLASSIFICATION,
    **TAGGING,
    **ANSWERING,
    **LANGUAGE,
    **IMAGES,
}


# Families of recipes, by heading: a family is a recipe, its variants (`FAMILY/...`), or both.
FAMILIES = {
    "train on your data, or on small built-in data": {
        "translation": "translators of parallel texts, from dates and amounts to WMT14",
        "text-classification": "classifiers of texts from scratch",
        "tagging": "taggers of words, from scratch or from a BERT",
        "language-modeling": "GPTs that continue texts or source code",
        "bert": "BERTs that fill in masked words, for fine-tuning",
        "image-classification": "Vision Transformers for images",
    },
    "fine-tune a model on your data": {
        "single-sentence": "classifiers of single texts, from a BERT or GPT",
        "sentence-pair": "classifiers of pairs of texts, from a BERT or GPT",
        "question-answering": "models that find answers as spans of a text, from a BERT",
    },
    "reproduce results on published data sets": {
        "imdb": "classifiers of film reviews: a Transformer and six baselines",
        "sst2": "a sentiment classifier of sentences",
        "mrpc": "a classifier of sentence pairs with equal meaning",
        "conll2003": "a tagger of named entities",
        "xquad": "a question answering model from only 1,000 questions",
        "mnist": "a Vision Transformer for handwritten digits",
        "cifar10": "classifiers of small photos: ResNets, Vision Transformers, and mixtures",
        "deit": "DeiT for ImageNet, and its ablation table on CIFAR-10",
    },
}


def variants(family: str) -> list[str]:
    """Return the names of the recipes `FAMILY/...`."""
    return [name for name in RECIPES if name.startswith(f"{family}/")]


def is_for_any_data(name: str) -> bool:
    """Return True if a recipe is made for the user's own data, and not for a certain data set or experiment."""
    own, fine_tuning, *_ = FAMILIES.values()
    return name in own or name in fine_tuning


def find(name: str, recipes: Mapping[str, Recipe] = RECIPES) -> Recipe:
    """Return the recipe with the given name. Raises UserError, with a similar name, if there is none."""
    if name in recipes:
        return recipes[name]
    if members := [recipe for recipe in recipes if recipe.startswith(f"{name}/")]:
        raise UserError(f"{name!r} is a group of recipes: choose {', '.join(members)}")
    last = [recipe for recipe in recipes if recipe.rpartition("/")[2] == name]
    close = last or get_close_matches(name, [*recipes, *(recipe.partition("/")[0] for recipe in recipes)], n=1)
    others = "`manyheads recipes` lists them" if recipes is RECIPES else f"expected one of {', '.join(recipes)}"
    hint = f"did you mean {' or '.join(close)}?" if close else others
    raise UserError(f"unknown recipe {name!r}: {hint}")
