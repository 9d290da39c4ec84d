"""Recipe of the classifier of film reviews by TF-IDF and logistic regression."""

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
}  # fmt: skip
