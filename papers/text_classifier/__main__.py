"""Baselines of the text classifier of Chollet 2021, as described in docs/papers/text-classifier.md.

python -m papers.text_classifier imdb/tfidf data=IMDB [key=value ...] --out RUN              fit
python -m papers.text_classifier imdb/plain-attention data=IMDB [key=value ...] --out RUN    train
"""

from __future__ import annotations

from papers.command import run, train
from papers.text_classifier.recipes import RECIPES


def main(arguments: list[str]) -> None:
    train(RECIPES, arguments)


if __name__ == "__main__":
    raise SystemExit(run(main))
