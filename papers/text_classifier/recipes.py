"""Recipes of classifiers of film reviews: TF-IDF with logistic regression, and attention without learned matrices."""

from __future__ import annotations

from dataclasses import replace

from manyheads.runs.recipe import Recipe
from manyheads.tasks.classification.recipes import IMDB, IMDB_DATA

RECIPES = {
    "imdb/tfidf": Recipe(
        "TF-IDF and logistic regression", "Chollet 2021",
        replace(IMDB, preset="tfidf", max_length=None, truncate=False), "papers.text_classifier.run:train",
        "It reads whole reviews (with scikit-learn). For LSA, set model.components=100, as its documentation advises.",
        requires=IMDB_DATA, spreads=False, program="python -m papers.text_classifier",
    ),
    "imdb/plain-attention": Recipe(
        "the corrected classifier with identity matrices for queries, keys and values", "Chollet 2021",
        replace(IMDB, preset="text-classifier/corrected"), "papers.text_classifier.plain_attention:PlainAttention",
        "Its attention weights come from the dot products of the words' vectors. Compare it with imdb/corrected.",
        requires=IMDB_DATA, program="python -m papers.text_classifier",
    ),
}  # fmt: skip
