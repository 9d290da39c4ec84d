"""Encoders of figure 3 of Devlin et al. 2018, as described in docs/papers/directions.md.

python -m papers.directions reading [key=value ...] --out RUN    train three encoders and compare their features
"""

from __future__ import annotations

from papers.command import run, train
from papers.directions.recipes import RECIPES


def main(arguments: list[str]) -> None:
    train(RECIPES, arguments)


if __name__ == "__main__":
    raise SystemExit(run(main))
